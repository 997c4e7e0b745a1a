"""The figures as a picture with a panel for each group of benchmarks."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter

from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.plots import BLUE, GREEN, GREY, LIMIT, PALE, PURPLE, RED, Axes, picture, versions

_CELL = re.compile(r"k=(\d+), (\d+) connection")


def draw(figures: Sequence[Figure], summary: Mapping[str, Any], path: Path) -> None:
    measured = [
        (title, chosen, paint)
        for title, names, paint in _PANELS
        if (chosen := [figure for figure in figures if figure.benchmark in names])
    ]
    columns = min(3, math.ceil(math.sqrt(len(measured)))) or 1
    rows = -(-len(measured) // columns) or 1
    head = f"outlive {summary['versions']['outlive']} bench: {versions(summary)}"
    title = f"{head}, fsync {summary['settings'].get('fsync')}"
    with picture(path, title, rows=rows, columns=columns, size=(1 + 5 * columns, 1 + 4 * rows)) as axes:
        for panel in axes[len(measured) :]:
            panel.set_axis_off()
        for panel, (name, chosen, paint) in zip(axes, measured, strict=False):
            panel.set_title(name, pad=10)
            paint(panel, chosen)


def _claims(axes: Axes, figures: Sequence[Figure]) -> None:
    """Rates over the size of a claim, a curve for each number of connections, with the spread as a band."""
    cells = {(int(found[1]), int(found[2])): figure for figure in figures if (found := _CELL.search(figure.name))}
    ks = sorted({k for k, _ in cells})
    for colour, connections in zip((GREEN, BLUE, PURPLE), sorted({number for _, number in cells}), strict=False):
        of_these = [cells[k, connections] for k in ks]
        label = f"{connections} connection{'s' * (connections > 1)}"
        axes.plot(ks, [figure.median for figure in of_these], "o-", color=colour, label=label, linewidth=2)
        low, high = ([pick(figure.samples) for figure in of_these] for pick in (min, max))
        axes.fill_between(ks, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.hlines(30_000, 200, 512, color=LIMIT, linestyle="--", linewidth=1.5, label="must, 1 connection")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_xlabel("k: jobs ended and claimed by one statement")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.set_ylabel("jobs per second")
    axes.legend(loc="upper left")


def _parts(axes: Axes, figures: Sequence[Figure]) -> None:
    """Each rate as a part of the free rate."""
    parts = []
    for figure in figures:
        name = figure.name.removeprefix("claims, ")
        must = Bound("at least", 100 * figure.bound.value) if figure.bound else None
        parts.append(Figure(figure.benchmark, name, "%", [100 * (figure.ratio or 0.0)], bound=must))
    _bars(axes, parts)
    axes.axvline(100, color=PALE, linewidth=1, zorder=0)


def _over_time(axes: Axes, figures: Sequence[Figure]) -> None:
    """The drain's rate while the snapshot is held, beside the free rate."""
    figure = figures[0]
    free = sorted(figure.reference)[len(figure.reference) // 2]
    at_s, rates = [point[0] for point in figure.series], [point[1] for point in figure.series]
    axes.plot(at_s, rates, color=BLUE, linewidth=2, label="vacuum held back")
    axes.fill_between(at_s, 0, rates, color=BLUE, alpha=0.1, linewidth=0)
    axes.axhline(free, color=GREEN, linewidth=1.5, label="free")
    if figure.bound:
        axes.axhline(figure.bound.value * free, color=LIMIT, linestyle="--", linewidth=1.5, label="must")
    axes.set_ylim(0, 1.15 * max(free, *rates))
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.set_ylabel("jobs per second")
    axes.set_xlabel("seconds of draining since the snapshot was taken")
    axes.legend(loc="lower left")


def _bars(axes: Axes, figures: Sequence[Figure]) -> None:
    """Medians as bars with the spread as whiskers."""
    medians = [figure.median for figure in figures]
    spread = [
        [figure.median - min(figure.samples) for figure in figures],
        [max(figure.samples) - figure.median for figure in figures],
    ]
    names = [textwrap.fill(re.sub(r" \(.*\)", "", figure.name), 28) for figure in figures]
    bars = axes.barh(names, medians, xerr=spread, color=[_colour(figure) for figure in figures], height=0.6)
    ends = []
    for bar, figure in zip(bars, figures, strict=True):
        words = f"{figure.median:.3g} {figure.unit}" if figure.unit in _MEASURES else f"{figure.median:,.0f}"
        words += f"  ({figure.ratio:.0%})" if figure.ratio is not None else ""
        must = figure.bound.value if figure.bound and not figure.bound.kind.endswith("of reference") else None
        end = max(*figure.samples, must or 0.0)
        ends.append(end)
        axes.annotate(words, (end, bar.get_y() + bar.get_height() / 2), (6, 0), textcoords="offset points", va="center")
        if must is not None:
            axes.plot([must] * 2, [bar.get_y() - 0.08, bar.get_y() + 0.68], color=LIMIT, linewidth=2)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(ends))
    if figures[0].unit not in _MEASURES:
        axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.set_xlabel(_MEASURES.get(figures[0].unit, "per second"))
    axes.grid(axis="y", visible=False)


def _rates(axes: Axes, figures: Sequence[Figure]) -> None:
    _bars(axes, [figure for figure in figures if figure.unit.endswith("/s")])


def _fleet(axes: Axes, figures: Sequence[Figure]) -> None:
    """Each kind of figure over the number of workers."""
    kinds: dict[str, list[tuple[int, float]]] = {}
    for figure in figures:
        size, _, kind = figure.name.partition(": ")
        if "at once" not in kind:
            number = int(size.split()[0].replace(",", ""))
            kinds.setdefault(f"{kind}, {figure.unit}".rstrip(", "), []).append((number, figure.median))
    for colour, (kind, points) in zip((GREEN, BLUE, PURPLE, GREY, RED), kinds.items(), strict=False):
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=kind, linewidth=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("workers")
    axes.legend(loc="upper left")


def _colour(figure: Figure) -> str:
    return {False: RED, True: GREEN, None: GREY}[figure.passed]


def _thousands(value: float, _: int | None = None) -> str:
    return f"{value / 1000:g}k" if value else "0"


_THOUSANDS = FuncFormatter(_thousands)
_MEASURES = {
    "ms": "milliseconds",
    "s": "seconds",
    "MB": "megabytes",
    "%": "% of the free rate of the same run (mark: must)",
}
_BACKLOGS = ("few", "pending", "future", "paused", "foreign", "sleeping", "lanes", "vacuum")
_PANELS: list[tuple[str, Sequence[str], Callable[[Axes, Sequence[Figure]], None]]] = [
    ("End and claim", ("claim",), _claims),
    ("Claims beside a backlog", _BACKLOGS, _parts),
    ("Vacuum held back", ("vacuum",), _over_time),
    ("Enqueue", ("enqueue", "enqueue-many"), _bars),
    ("Reads", ("status", "find-lanes"), _bars),
    ("Prune", ("prune",), _bars),
    ("A worker's drain, warm", ("warm",), _bars),
    ("A worker's drain, a process for each job", ("fresh", "killers"), _rates),
    ("A worker's drain, jobs of 1 ms", ("slots",), _bars),
    ("Commands", ("cli",), _bars),
    ("Pick-up by an idle worker", ("pick-up",), _bars),
    ("A worker's memory", ("memory",), _bars),
    ("A fleet of idle workers", ("fleet",), _fleet),
]
