"""What a contest found: a row for each system, outlive's figures beside their bounds, and the report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich import box
from rich.table import Table

from outlive_lab.bench.figures import Bound, Figure, as_markdown
from outlive_lab.peers.contest import Outcome
from outlive_lab.peers.plan import OURS, System

COLUMNS: dict[str, Sequence[tuple[str, str]]] = {
    "drain, default /s": [("default", "drain")],
    "drain, tuned /s": [("tuned", "drain")],
    "enqueue one by one /s": [("default", "one"), ("tuned", "one"), ("copy", "one")],
    "in bulk /s": [("default", "bulk"), ("tuned", "bulk"), ("copy", "bulk")],
    "pick-up p50 ms": [("default", "p50"), ("tuned", "p50"), ("copy", "p50")],
    "p99 ms": [("default", "p99"), ("tuned", "p99"), ("copy", "p99")],
    "a process per job /s": [("fork", "drain")],
}
"""Each column, and the modes that may have it."""

_FRESH = "a process per job, {} slots, beside two RQ workers"
_FIRST_LINE = "from enqueue's return to the job's first line"
MUSTS: Sequence[tuple[str, str, str, str, Bound]] = (
    ("warm drain, beside PgQueuer", "jobs/s", "default drain", "pgqueuer tuned drain", Bound("of reference", 1.35)),
    ("warm drain, beside --quiet", "jobs/s", "default drain", "outlive tuned drain", Bound("of reference", 0.9)),
    ("the same, --quiet, beside PgQueuer", "jobs/s", "tuned drain", "pgqueuer tuned drain", Bound("of reference", 1.5)),
    ("warm drain, recycle_after=100", "jobs/s", "recycled drain", "", Bound("at least", 14_000)),
    ('warm drain, recycle_after="clean"', "jobs/s", "clean drain", "", Bound("at least", 10_000)),
    (_FRESH.format(2), "jobs/s", "fork drain", "rq fork drain", Bound("of reference", 5)),
    (_FRESH.format(8), "jobs/s", "fork8 drain", "rq fork drain", Bound("of reference", 6)),
    ("enqueue, beside a bare INSERT", "jobs/s", "default one", "outlive default bare", Bound("of reference", 0.75)),
    ("1,000 at a time, beside PgQueuer", "jobs/s", "default bulk", "pgqueuer tuned bulk", Bound("of reference", 1)),
    (f"{_FIRST_LINE}, p50", "ms", "default p50", "", Bound("at most", 2.5)),
    (f"{_FIRST_LINE}, p99", "ms", "default p99", "", Bound("at most", 5)),
    ("outlive jobs, wall", "s", "default jobs", "", Bound("at most", 0.25)),
    ("outlive stats, wall", "s", "default stats", "", Bound("at most", 0.3)),
)
"""A name, a unit, a mode of outlive and what is measured there, what it is compared with, and the bound."""


def figures(outcome: Outcome) -> list[Figure]:
    """outlive's own figures, each with the bound that it must meet in this run."""
    made = []
    for name, unit, measured, other, bound in MUSTS:
        samples, reference = outcome.of(f"{OURS} {measured}"), outcome.of(other)
        if samples and (reference or not other):
            made.append(Figure("peers", name, unit, samples, reference, bound))
    return made


def cell(outcome: Outcome, system: System, column: str) -> str:
    for mode, what in COLUMNS[column]:
        if samples := outcome.of(f"{system.name} {mode} {what}"):
            value = statistics.median(samples)
            return f"{value:.1f}" if column.endswith("ms") else f"{value:,.0f}"
    return "–"


def table(outcome: Outcome) -> Table:
    made = Table(title="outlive and its peers", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD)
    made.add_column("system")
    for column in COLUMNS:
        made.add_column(column, justify="right")
    for system in outcome.systems:
        made.add_row(f"{system.title} [dim]{system.store}[/]", *(cell(outcome, system, column) for column in COLUMNS))
    made.caption = "\n".join(reasons(outcome))
    return made


def reasons(outcome: Outcome) -> list[str]:
    """Why a system has no figures, once for all of its modes if the reason is the same."""
    told: dict[str, list[str]] = {}
    titles = {system.name: system.title for system in outcome.systems}
    for (name, mode), reason in outcome.reasons.items():
        told.setdefault(f"{titles[name]}: {reason}", []).append(mode)
    return [f"{reason} ({', '.join(modes)})" for reason, modes in told.items()]


def as_json(outcome: Outcome) -> dict[str, object]:
    made = figures(outcome)
    return {
        "figures": [figure.as_json() for figure in made],
        "missed": [figure.name for figure in made if figure.passed is False],
        "systems": {system.name: _system(outcome, system) for system in outcome.systems},
        **outcome.circumstances,
    }


def _system(outcome: Outcome, system: System) -> dict[str, object]:
    modes = {}
    for mode, words in system.modes.items():
        start = f"{system.name} {mode} "
        samples = {what.removeprefix(start): some for what, some in outcome.samples.items() if what.startswith(start)}
        modes[mode] = {
            "command": words.command,
            "processes": words.workers,
            "environment": dict(words.environment),
            "settings": words.settings,
            "jobs": words.jobs,
            "samples": {what: [round(value, 4) for value in values] for what, values in samples.items()},
            "failed": outcome.reasons.get((system.name, mode)),
        }
    return {"store": system.store, "installed": outcome.installed.get(system.name, []), "modes": modes}


def report(outcome: Outcome) -> list[str]:
    """The sections of the report, in Markdown."""
    lines = ["## The systems", "", f"| system | store | {' | '.join(COLUMNS)} |", "|" + "---|" * (len(COLUMNS) + 2)]
    for system in outcome.systems:
        cells = [cell(outcome, system, column) for column in COLUMNS]
        lines.append(f"| {system.title} | {system.store} | {' | '.join(cells)} |")
    if told := reasons(outcome):
        lines += ["", "Not measured:", *(f"- {reason}" for reason in told)]
    lines += ["", "## What outlive must reach", "", *as_markdown(figures(outcome))]
    lines += [
        "",
        "## Versions and settings",
        "",
        "| system | mode | command | settings | drain /s |",
        "|---|---|---|---|---|",
    ]
    for system in outcome.systems:
        for mode, words in system.modes.items():
            drained = outcome.of(f"{system.name} {mode} drain")
            rate = f"{statistics.median(drained):,.0f}" if drained else "–"
            times = f" × {words.workers}" if words.workers > 1 else ""
            lines.append(f"| {system.title} | {mode} | `{words.command}`{times} | {words.settings} | {rate} |")
    lines.append("")
    for system in outcome.systems:
        if installed := outcome.installed.get(system.name):
            lines.append(f"- {system.title}: {', '.join(installed)}")
    return lines
