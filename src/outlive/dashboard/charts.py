"""Charts as SVG, drawn by the server. Colours are classes of the stylesheet: the pages allow no inline style."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup, escape

from outlive.humanize import duration, size
from outlive.model import MemoryCourse

WIDTH, HEIGHT = 400, 132
WIDE = 2 * WIDTH + 38
LEFT, RIGHT, TOP, BOTTOM = 48, 4, 8, 18
TICKS = [
    *((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s"), (60, "1 m"), (600, "10 m")),
    *((3600, "1 h"), (36_000, "10 h"), (86_400 * 4, "4 d"), (86_400 * 40, "40 d"), (86_400 * 400, "400 d")),
]
"""Seconds that a scale of time may name. Longer labels would be cut."""
Times = Sequence[tuple[float, str, str]]
HOUR: Times = ((0, "1 h ago", "start"), (0.5, "30 min", "middle"), (1, "now", "end"))
"""Where on the scale of time each word stands."""
Scale = tuple[Callable[[float], float], list[tuple[float, str]]]
"""Where on a scale a value is, from 0 to 1, and the ticks with their words."""
TICK_APART = 0.12
"""Labels of a scale that are nearer than this part of it would overlap."""
INNER, TALL = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def stacked(
    columns: Sequence[Mapping[str, float]],
    order: Sequence[str],
    *,
    labels: Sequence[str],
    about: str,
    times: Times,
) -> Markup:
    """A bar for each step of time, with one part for each key of `order`.

    The chart is as wide as two others, and on a narrow screen as wide as one: the same bars are drawn there.
    """
    most = _nice(max((sum(column.values()) for column in columns), default=0))
    parts = []
    for n, column in enumerate(columns):
        y = float(TALL)
        words = ", ".join(f"{_count(column[key])} {key.replace('_', ' ')}" for key in order if column.get(key))
        bars = []
        for key in order:
            if value := column.get(key):
                tall = max(1.0, value / most * TALL)
                y -= tall
                bars.append(
                    f'<rect class="c-{escape(key)}" x="{n + 0.06:.2f}" y="{y:.1f}" width=".88" height="{tall:.1f}"/>'
                )
        if bars:
            parts.append(f"<g><title>{escape(labels[n])}: {escape(words)}</title>{''.join(bars)}</g>")
    drawn = f'<g id="bars">{"".join(parts)}</g>'
    drawings = []
    for width, form, inside in ((WIDE, "wide", drawn), (WIDTH, "narrow", '<use href="#bars"/>')):
        inner = width - LEFT - RIGHT
        plot = (
            f'<svg x="{LEFT}" y="{TOP}" width="{inner}" height="{TALL}" viewBox="0 0 {max(1, len(columns))} {TALL}" '
            f'preserveAspectRatio="none">{inside}</svg>'
        )
        drawings.append(_svg([_grid(_counts(most), inner, times), plot], about, width, form))
    return Markup().join(drawings)


def lines(
    series: Mapping[str, Sequence[float | None]],
    *,
    about: str,
    seconds: bool = False,
    percent: bool = False,
    times: Times = HOUR,
) -> Markup:
    """A line for each series; None leaves a gap. Seconds are drawn on a logarithmic scale."""
    values = [value for one in series.values() for value in one if value is not None]
    place, ticks = _log_scale(values) if seconds else _linear_scale(values, percent=percent)
    parts = [_grid(ticks, INNER, times)]
    for name, one in series.items():
        step = INNER / max(1, len(one) - 1)
        for piece in _pieces(one):
            points = [(LEFT + n * step, TOP + TALL * (1 - place(value))) for n, value in piece]
            if len(points) == 1:
                (x, y) = points[0]
                parts.append(f'<circle class="l-{escape(name)}" cx="{x:.1f}" cy="{y:.1f}" r="1.5"/>')
            else:
                drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                parts.append(f'<polyline class="l-{escape(name)}" points="{drawn}"/>')
    return _svg(parts, about)


def memory(course: MemoryCourse, *, about: str) -> Markup:
    """The memory of an attempt over its time, and its limit as a dashed line."""
    most = max([1, *course.used_bytes, round((course.limit_bytes or 0) * 1.1)])
    last_s = course.at_s[-1] or 1.0
    used = max(course.used_bytes)
    ticks = [(0.0, "0"), (used / most, size(used))]
    limit = ""
    if course.limit_bytes is not None:
        place = course.limit_bytes / most
        apart = TICK_APART < used / most < place - TICK_APART
        ticks = [(0.0, "0"), (place, size(course.limit_bytes)), *([(used / most, size(used))] if apart else [])]
        y = TOP + TALL * (1 - place)
        limit = f'<line class="limit" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + INNER}" y2="{y:.1f}"/>'
    points = " ".join(
        f"{LEFT + INNER * at_s / last_s:.1f},{TOP + TALL * (1 - used / most):.1f}"
        for at_s, used in zip(course.at_s, course.used_bytes, strict=True)
    )
    line = f'<polyline class="l-memory" points="{points}"/>'
    return _svg([_grid(ticks, INNER, ((0, "0 s", "start"), (1, duration(last_s), "end"))), limit, line], about)


def timeline(spans: Sequence[tuple[str, float, float, str]], *, about: str) -> Markup:
    """Attempts on one line: (outcome, begin, end, words), with times from 0 to 1."""
    bars = "".join(
        f'<g><title>{escape(words)}</title><rect class="c-{escape(outcome)}" '
        f'x="{min(begin * WIDTH, WIDTH - wide):.1f}" y="2" width="{wide:.1f}" height="8"/></g>'
        for outcome, begin, end, words in spans
        for wide in [max(3.0, (end - begin) * WIDTH)]
    )
    return Markup(
        f'<svg class="timeline" viewBox="0 0 {WIDTH} 12" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(about)}"><line class="grid" x1="0" y1="6" x2="{WIDTH}" y2="6"/>{bars}</svg>'
    )


def bar(outcome: str, begin: float, end: float) -> Markup:
    """One span of time in its row of a table, which says the same in words."""
    wide = max(3.0, (end - begin) * WIDTH)
    x = min(begin * WIDTH, WIDTH - wide)
    return Markup(
        f'<svg class="bar" viewBox="0 0 {WIDTH} 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="c-{escape(outcome)}" x="{x:.1f}" y="0" width="{wide:.1f}" height="8"/></svg>'
    )


def _pieces(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[]]
    for n, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append((n, value))
    return [piece for piece in found if piece]


def _linear_scale(values: Sequence[float], *, percent: bool) -> Scale:
    most = _nice(max(values, default=0))
    ticks = [(0.0, "0"), (0.5, f"{most / 2:.3g} %"), (1.0, f"{most:.3g} %")] if percent else _counts(most)
    return lambda value: value / most, ticks


def _counts(most: float) -> list[tuple[float, str]]:
    """Ticks of a scale of whole numbers."""
    half = [(0.5, _count(most / 2))] if most % 2 == 0 else []
    return [(0.0, "0"), *half, (1.0, _count(most))]


def _log_scale(values: Sequence[float]) -> Scale:
    least, most = min(values, default=0.001), max(values, default=1.0)
    first = max((n for n, (tick, _) in enumerate(TICKS[:-1]) if tick <= least), default=0)
    last = next((n for n, (tick, _) in enumerate(TICKS) if tick >= most and n > first), len(TICKS) - 1)
    low, high = math.log10(TICKS[first][0]), math.log10(TICKS[last][0])

    def place(value: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(value, 0.001)) - low) / (high - low)))

    return place, [(place(tick), word) for tick, word in TICKS[first : last + 1]]


def _nice(most: float) -> float:
    """The next number of 1, 2 or 5 times a power of ten."""
    if most <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= most)


def _count(value: float) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def _grid(ticks: Sequence[tuple[float, str]], inner: int, times: Times) -> str:
    rows = []
    for place, word in ticks:
        y = TOP + TALL * (1 - place)
        rows.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + inner}" y2="{y:.1f}"/>')
        rows.append(f'<text x="{LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{escape(word)}</text>')
    for place, word, anchor in times:
        rows.append(f'<text x="{LEFT + place * inner}" y="{HEIGHT - 4}" text-anchor="{anchor}">{word}</text>')
    return "".join(rows)


def _svg(parts: Sequence[str], about: str, width: int = WIDTH, form: str = "") -> Markup:
    head = f'<svg class="chart {form}" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(about)}">'
    return Markup(head + "".join(parts) + "</svg>")
