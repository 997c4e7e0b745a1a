"""A game as a picture: throughput with the faults under it, and how long deaths took to be noticed. The only file here
that imports matplotlib, and only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from outlive.lab.gameday.history import Kind

INK, PALE, LIMIT, DONE = "#1f2933", "#cbd2d9", "#c2410c", "#0f766e"
COLOURS = {
    Kind.CHILD: "#7b8794",
    Kind.SPARE: "#7b8794",
    Kind.ZYGOTE: "#2563eb",
    Kind.SUPERVISOR: "#dc2626",
    Kind.HEAD: "#dc2626",
    Kind.TREE: "#dc2626",
    Kind.EVERYBODY: "#dc2626",
    Kind.REVIVAL: "#2563eb",
    Kind.DEPLOY: "#b45309",
    Kind.STOP: "#b45309",
    Kind.RELOAD: "#b45309",
    Kind.FREEZE: "#0891b2",
    Kind.OVERDUE: "#0891b2",
    Kind.PAUSE: "#0891b2",
    Kind.LOCK: "#65a30d",
    Kind.READ_ONLY: "#9333ea",
    Kind.BACKEND: "#9333ea",
    Kind.RESTART: "#9333ea",
}
SHADES = ("#dc2626", "#f59e0b", "#7b8794", "#2563eb")


def draw(told: Mapping[str, Any], path: Path) -> None:
    with pyplot.rc_context(_LOOK):
        picture, (rate, faults, times) = pyplot.subplots(
            3, 1, figsize=(13, 11), sharex=True, height_ratios=(3, 3, 3), layout="constrained"
        )
        _throughput(rate, told)
        _faults(faults, told)
        _times(times, told)
        versions = told["versions"]
        picture.suptitle(
            f"outlive {versions['outlive']} gameday, seed {told['seed']}: {told['kills']:,} kills, "
            f"{told['jobs_finished']:,} jobs finished, {told['lost']} lost, {told['finished_twice']} finished twice; "
            f"PostgreSQL {versions['postgres']}, {told['cpu_count']} CPUs",
            fontsize=11,
            color="#52606d",
        )
        picture.savefig(path, dpi=110)
        pyplot.close(picture)


def _throughput(axes: Axes, told: Mapping[str, Any]) -> None:
    seconds = [second for second, _ in told["throughput"]]
    counts = [count for _, count in told["throughput"]]
    axes.fill_between(seconds, 0, counts, step="post", color=DONE, alpha=0.25, linewidth=0)
    axes.step(seconds, counts, where="post", color=DONE, linewidth=1)
    for n, (start, end) in enumerate(told["outages"]):
        axes.axvspan(start, end, color="#9333ea", alpha=0.3, linewidth=0, label="no database" if n == 0 else None)
    axes.set_title("Jobs finished per second", loc="left", fontweight="bold", color=INK)
    axes.set_ylim(bottom=0)
    if told["outages"]:
        axes.legend(frameon=False, loc="upper right")


def _faults(axes: Axes, told: Mapping[str, Any]) -> None:
    """A line for each kind, a mark for each fault."""
    kinds = list(Kind)
    for row, kind in enumerate(kinds):
        at_s = [at for at, name, _ in told["marks"] if name == kind]
        axes.plot(at_s, [row] * len(at_s), "|", color=COLOURS[kind], markersize=9, markeredgewidth=1.2)
    axes.set_yticks(range(len(kinds)), [f"{kind} ({told['faults'][kind]:,})" for kind in kinds])
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.set_title("Faults", loc="left", fontweight="bold", color=INK)


def _times(axes: Axes, told: Mapping[str, Any]) -> None:
    """Each death and how long it took to be noticed; those that are judged apart are left out."""
    for shade, one in zip(SHADES, told["times"], strict=False):
        points = told["samples"][one["name"]]
        axes.plot(
            [at for at, _ in points], [max(took, 1e-3) for _, took in points], ".", color=shade, label=one["name"]
        )
        if one["bound_s"] is not None:
            axes.axhline(one["bound_s"], color=shade, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(_duration))
    axes.set_title("Until it was noticed (dashed: what p99 must not pass)", loc="left", fontweight="bold", color=INK)
    axes.set_xlabel("seconds since the beginning")
    axes.legend(frameon=False, loc="upper right", fontsize=8)


def _duration(value: float, _: int | None = None) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


_LOOK: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALE,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "axes.axisbelow": True,
    "xtick.color": "#52606d",
    "ytick.color": INK,
}
