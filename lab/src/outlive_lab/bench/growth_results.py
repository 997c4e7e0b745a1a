"""The curves of a growth run as a table, as a page, and as a picture with a panel for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.growth import PANELS, Point

STATS = "outlive stats"


def rows(points: Sequence[Point]) -> list[tuple[str, str, str, str]]:
    """Each point: its curve, the axis, where on it, and the value."""
    axes = {curve: axis for axis, curves in PANELS.values() for curve in curves}
    return [(point.curve, axes[point.curve], f"{point.at:,}", _value(point)) for point in points]


def _value(point: Point) -> str:
    return f"{point.value:.2f} s" if point.curve.startswith("outlive ") else f"{point.value:,.0f}/s"


def table(points: Sequence[Point]) -> Table:
    made = Table(title="how outlive grows", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD)
    for name in ("curve", "axis", "at", "value"):
        made.add_column(name, justify="right" if name in ("at", "value") else "left")
    for row in rows(points):
        made.add_row(*row)
    return made


def as_markdown(points: Sequence[Point]) -> list[str]:
    lines = ["| curve | axis | at | value |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows(points))]


def figures(points: Sequence[Point]) -> list[Figure]:
    """The bound of `outlive stats`, at the largest number of finished jobs."""
    if not (measured := [point for point in points if point.curve == STATS]):
        return []
    last = measured[-1]
    name = f"{STATS}, {last.at:,} finished jobs, wall"
    return [Figure("growth", name, "s", [last.value], bound=Bound("at most", 0.3))]


def short(value: float) -> str:
    """A number as an axis shows it: 200, 5k, 10M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def draw(points: Sequence[Point], summary: Mapping[str, Any], path: Path) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    from outlive_lab.plots import BLUE, GREEN, picture, versions

    panels = [
        (axis, drawn)
        for axis, curves in PANELS.values()
        if (
            drawn := [
                (curve, some) for curve in curves if (some := [point for point in points if point.curve == curve])
            ]
        )
    ]
    columns = min(3, len(panels)) or 1
    count = math.ceil(len(panels) / columns) or 1
    title = f"outlive {summary['versions']['outlive']}, as things grow: {versions(summary)}"
    with picture(path, title, rows=count, columns=columns, size=(1 + 5 * columns, 1 + 4 * count)) as axes:
        for panel in axes[len(panels) :]:
            panel.set_axis_off()
        for panel, (axis, drawn) in zip(axes, panels, strict=False):
            for colour, (curve, some) in zip((BLUE, GREEN), drawn, strict=False):
                at = [max(1, point.at) for point in some]  # Nothing is drawn at 1, because the axis is logarithmic.
                panel.plot(at, [point.value for point in some], "o-", color=colour, label=curve, linewidth=2)
            panel.set_xscale("log")
            panel.set_yscale("log")
            marks = sorted({point.at for _, some in drawn for point in some})
            panel.set_xticks([max(1, mark) for mark in marks], [short(mark) for mark in marks], minor=False)
            panel.xaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
            panel.yaxis.set_minor_locator(NullLocator())
            low = min(point.value for _, some in drawn for point in some)
            high = max(point.value for _, some in drawn for point in some)
            panel.set_ylim(low / 3, high * 3)
            panel.set_xlabel(axis)
            panel.set_ylabel("seconds" if drawn[0][0].startswith("outlive ") else "per second")
            panel.set_title(", ".join(curve for curve, _ in drawn), pad=10)
            panel.legend(loc="lower left")
