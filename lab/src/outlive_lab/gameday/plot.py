"""A game as a picture: throughput, the faults below it, and how long deaths took to be noticed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter

from outlive_lab.gameday.history import FAILOVERS, FREEZES, WORKER_KILLS, ZYGOTE_KILLS, Kind
from outlive_lab.plots import BLUE, GREEN, GREY, PURPLE, RED, Axes, picture, versions

SHADES = (RED, "#f59e0b", GREY, BLUE)
BROWN, CYAN, LIME = "#b45309", "#0891b2", "#65a30d"
COLOURS = (
    ({Kind.CHILD, Kind.SHARED, Kind.SPARE}, GREY),
    (ZYGOTE_KILLS, BLUE),
    (WORKER_KILLS - {Kind.DEPLOY}, RED),
    (FREEZES | {Kind.MACHINE}, CYAN),
    ({Kind.LOCK, Kind.CROWD, Kind.QUEUE}, LIME),
    ({Kind.READ_ONLY, Kind.BACKEND, Kind.RESTART, Kind.OUTAGE}, PURPLE),
    (set(FAILOVERS), PURPLE),
    ({Kind.DEPLOY, Kind.STOP, Kind.RELOAD}, BROWN),
)


def draw(summary: Mapping[str, Any], path: Path) -> None:
    title = (
        f"outlive {summary['versions']['outlive']} gameday, seed {summary['seed']}: {summary['kills']:,} kills, "
        f"{summary['jobs_finished']:,} jobs finished, {summary['lost']} lost, {summary['finished_twice']} finished "
        f"twice; {versions(summary)}"
    )
    with picture(path, title, rows=3, columns=1, size=(13, 11), sharex=True) as (rate, faults, times):
        _throughput(rate, summary)
        _faults(faults, summary)
        _times(times, summary)


def _throughput(axes: Axes, summary: Mapping[str, Any]) -> None:
    seconds, counts = ([point[n] for point in summary["throughput"]] for n in (0, 1))
    axes.fill_between(seconds, 0, counts, step="post", color=GREEN, alpha=0.25, linewidth=0)
    axes.step(seconds, counts, where="post", color=GREEN, linewidth=1)
    for n, (start, end) in enumerate(summary["outages"]):
        axes.axvspan(start, end, color=PURPLE, alpha=0.3, linewidth=0, label="no database" if n == 0 else None)
    axes.set_title("Jobs finished per second")
    axes.set_ylim(bottom=0)
    if summary["outages"]:
        axes.legend(loc="upper right")


def _faults(axes: Axes, summary: Mapping[str, Any]) -> None:
    """A row for each kind, a mark for each fault."""
    kinds = [Kind(name) for name in summary["faults"]]
    colours = {kind: colour for some, colour in COLOURS for kind in some}
    for row, kind in enumerate(kinds):
        at_s = [at for at, name, _ in summary["marks"] if name == kind]
        axes.plot(at_s, [row] * len(at_s), "|", color=colours[kind], markersize=9, markeredgewidth=1.2)
    axes.set_yticks(range(len(kinds)), [f"{kind} ({summary['faults'][kind]:,})" for kind in kinds])
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.set_title("Faults")


def _times(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Each death and how long it took to be noticed, without the deaths that are judged apart."""
    for shade, one in zip(SHADES, summary["times"], strict=False):
        at_s, took_s = ([point[n] for point in summary["samples"][one["name"]]] for n in (0, 1))
        axes.plot(at_s, [max(took, 1e-3) for took in took_s], ".", color=shade, label=one["name"])
        if one["bound_s"] is not None:
            axes.axhline(one["bound_s"], color=shade, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(_duration))
    axes.set_title("Until it was noticed (dashed: the limit of p99)")
    axes.set_xlabel("seconds since the beginning")
    axes.legend(loc="upper right", fontsize=8)


def _duration(value: float, _: int | None = None) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
