"""stats: counts the jobs, and with --watch shows live what happens: rates, latencies, workers, killers, sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import LOOK, CommandContext, Json, Watch, app, command
from outlive.cli.screen import Cell, Column, Row, of, styled, table_or, time_of
from outlive.states import State

if TYPE_CHECKING:
    from rich.console import RenderableType


def _jobs(key: str) -> Cell:
    return lambda row: styled(screen.number(row[key], estimated=row["estimated"]))


LANES = (
    Column("queue", of("queue")),
    Column("source", of("source")),
    Column("task", of("task"), shrink="fold"),
    Column("priority", of("priority"), "right"),
    Column("waiting", _jobs("waiting"), "right"),
    Column("ready", _jobs("ready"), "right"),
    Column("oldest ready", time_of("oldest_ready_at"), luxury=True),
)


@command(app, panel=LOOK)
def stats(
    context: CommandContext,
    lanes: Annotated[bool, typer.Option("--lanes", help="Count the waiting jobs by lane, the fullest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many lanes at most.")] = 100,
    json: Json = False,
    watch: Watch = False,
) -> None:
    """Count the jobs by state, queue and task. More than 5,000 of a state are estimated, and marked with ≈.

    With --watch it shows live how fast jobs end and how long they wait and run, the workers, killers and sources.

    Example: outlive stats --watch
    """
    if lanes:
        show = table_or("no job waits", LANES)
        screen.listing(lambda: context.run(store.list_lanes(limit=limit)), show, json=json, watch=watch)
        return

    def look() -> Counts:
        ended_per_s = context.run(store.rates())
        if not json:
            screen.draw_soon()  # The server counts meanwhile.
        return context.run(store.stats()), ended_per_s

    if not watch or json:
        screen.listing(look, _stats_table, json=json, watch=watch, shape=_counts)
        return
    from outlive.cli.pulse import Pulse

    pulse = Pulse(context)
    screen.listing(pulse.look, pulse.draw, json=False, watch=True, line=pulse.line)


Counts = tuple[Sequence[Row], Mapping[str, float]]
"""The jobs of each state, queue and task, and how many attempts end per second, by state."""


def _counts(found: Counts) -> dict[str, object]:
    rows, ended_per_s = found
    by: dict[str, Counter[str]] = {key: Counter() for key in ("state", "queue", "task")}
    by["state"].update(dict.fromkeys(State, 0))
    for row in rows:
        for key, counter in by.items():
            counter[row[key]] += row["jobs"]
    return {
        "jobs": by["state"].total(),
        **{f"by_{key}": counter for key, counter in by.items()},
        "counts": [{key: row[key] for key in ("state", "queue", "task", "jobs")} for row in rows],
        "estimated": sorted({row["state"] for row in rows if row["estimated"]}),
        "ended_per_s": ended_per_s,
    }


def _stats_table(found: Counts) -> RenderableType:
    """A row for each queue and task, a column for each state that occurs."""
    rows, ended_per_s = found
    if not rows:
        return "there are no jobs"
    from rich.console import Group

    seen = [state for state in State if any(row["state"] == state for row in rows)]
    lanes: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        lanes.setdefault((row["queue"], row["task"]), Counter())[row["state"]] += row["jobs"]
    rough = {row["state"] for row in rows if row["estimated"]}
    lines = [{"queue": queue, "task": task, **counts} for (queue, task), counts in sorted(lanes.items())]
    total: Counter[str] = sum(lanes.values(), Counter())
    columns = [Column("queue", of("queue")), Column("task", of("task"), shrink="fold")]
    rarity = {state: place for place, (state, _) in enumerate(total.most_common(), start=1)}
    columns += [
        Column(state, _jobs_in(state, estimated=state in rough), "right", spare=rarity[state]) for state in seen
    ]
    last = {"queue": "", "task": f"{screen.number(total.total(), estimated=bool(rough))} jobs", **total}
    fitting = screen.fitting(columns, [*lines, last])
    hidden = [one.title for one in columns if one not in fitting]
    missing = [f"{screen.number(total[state], estimated=state in rough)} {state}" for state in hidden]
    notes = [f"{per_s:.3g} {state}" for state, per_s in ended_per_s.items()]
    return Group(
        screen.table(fitting, [*lines, last]),
        *([styled(f"no room for columns of {', '.join(missing)}", style="dim")] if missing else []),
        *([styled("≈ is estimated from a sample of the jobs", style="dim")] if rough else []),
        *([styled(f"attempts that ended per second lately: {', '.join(notes)}", style="dim")] if notes else []),
    )


def _jobs_in(state: State, *, estimated: bool) -> Cell:
    return lambda row: styled(
        screen.number(row.get(state, 0), estimated=estimated), style="" if row.get(state) else "dim"
    )
