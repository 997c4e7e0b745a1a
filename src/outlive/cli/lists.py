"""The lists: jobs, killers, workers, stuck, stats and records. These commands change nothing."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlive import store
from outlive.cli import choosing, screen
from outlive.cli.choosing import Filter
from outlive.cli.command import LOOK, CommandContext, Json, ManyRows, Watch, app, command
from outlive.cli.screen import Cell, Column, Row, innermost, of, state_of, styled, table_or, time_of
from outlive.model import Record
from outlive.states import State

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many rows at most, the newest first.")]


def tries(row: Row) -> Text:
    """How many attempts the job had, and how they failed."""
    wrong = [f"{row[name]}{name[0].upper()}" for name in ("failures", "crashes", "losses") if row[name]]
    text = styled(str(row["attempt"]), style="" if row["attempt"] else "dim")
    return text.append(f" ({' '.join(wrong)})", style="yellow") if wrong else text


def task_in_queue(row: Row) -> Text:
    text = styled(screen.plain(row["task"]))
    return text if row["queue"] == "default" else text.append(f" in {screen.plain(row['queue'])}", style="dim")


JOBS = (
    Column("job", of("id")),
    Column("task", task_in_queue, shrink="fold"),
    Column("state", state_of("state")),
    Column("tries", tries),
    Column("created", time_of("created_at"), luxury=True),
    Column("last error", of("error_message", "red"), shrink="cut", luxury=True),
)
STUCK = (
    Column("job", of("id")),
    Column("task", task_in_queue, shrink="fold"),
    Column("worker", of("locked_by"), shrink="fold"),
    Column("started", time_of("locked_at"), luxury=True),
    Column("silent for", lambda row: styled(screen.duration(row["time_since_heartbeat_s"]), style="red")),
)
_WORKER_STYLES = {"active": "green", "draining": "yellow", "stale": "yellow", "dead": "bold red", "stopped": "dim"}


def _worker_state(row: Row) -> Text:
    trouble = f"\nstarts no job: {screen.plain(row['trouble'])}" if row["trouble"] else ""
    return styled(row["state"], style=_WORKER_STYLES[row["state"]]).append(trouble, style="bold red")


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
WORKERS = (
    Column("worker", lambda row: styled(screen.plain(row["name"])).append(f"\n{row['id']}", style="dim")),
    Column("state", _worker_state, shrink="fold"),
    Column(
        "where", lambda row: styled(screen.plain(f"{row['hostname']}, pid {row['pid']}")), shrink="fold", luxury=True
    ),
    Column("running", lambda row: styled(f"{row['running']} of {row['slots']}"), "right"),
    Column("started", time_of("started_at"), luxury=True),
    Column("last seen", lambda row: styled(f"{screen.duration(max(0.0, row['time_since_heartbeat_s']))} ago")),
)


@command(app, panel=LOOK)
def jobs(context: CommandContext, filter: Filter, limit: Limit = 50, json: Json = False, watch: Watch = False) -> None:
    """List jobs, the newest first.

    The tries 5 (2F 1C 1L) mean five attempts, with two failures, one crash and one loss among them.

    Example: outlive jobs --state failed --since 1h
    """
    wanted = filter.resolved(context)

    def look() -> Sequence[Row]:
        return context.run(store.list_jobs(choosing.first(context, wanted, limit=limit)))

    def show(rows: Sequence[Row]) -> RenderableType:
        return _jobs_table(rows) if rows else f"no job matches in {context.place}"

    screen.listing(look, show, json=json, watch=watch)


def _jobs_table(rows: Sequence[Row]) -> RenderableType:
    unserved = sorted({row["task"] for row in rows if not row["served"]})
    if not unserved:
        return screen.table(JOBS, rows)
    from rich.console import Group

    named = screen.plain(", ".join(unserved[:3]) + (", …" if len(unserved) > 3 else ""))
    return Group(
        screen.table(JOBS, rows),
        styled(f"no active worker has the task or serves the queue of: {named}", style="yellow"),
    )


def _murder(row: Row) -> Text:
    """How its last attempt died."""
    text = styled(screen.plain(row["details"] or "quarantined"), style="bold magenta")
    facts = [
        row["signal"] or (f"exit code {row['exit_code']}" if row["exit_code"] is not None else row["outcome"]),
        row["peak_memory_bytes"] and f"peak {screen.size(row['peak_memory_bytes'])}",
        row["cpu_s"] and f"cpu {screen.duration(row['cpu_s'])}",
    ]
    text.append("\n" + screen.plain(", ".join(str(fact) for fact in facts if fact)), style="not bold yellow")
    if row["error_message"]:
        text.append("\n" + screen.plain(screen.one_line(row["error_message"])), style="not bold red")
    return text


def _evidence(row: Row) -> Text:
    if row["stack"]:
        return styled(innermost(row["stack"], 5))
    return styled(screen.tail(row["output"] or "", 4), style="dim")


def _victim(row: Row) -> Text:
    text = styled(str(row["id"])).append(f"\n{screen.plain(row['task'])}", style="bold")
    text.append(f"\n{screen.moment(row['last_kill_at'] or row['quarantined_at'])}", style="dim")
    return text.append(f"\non {screen.plain(row['killed_on'])}", style="dim") if row["killed_on"] else text


KILLERS = (
    Column("job", _victim),
    Column("what it did", _murder, shrink="fold"),
    Column("last words", _evidence, shrink="fold"),
)


@command(app)
def killers(context: CommandContext, limit: Limit = 100, json: Json = False, watch: Watch = False) -> None:
    """List the jobs in quarantine, with the evidence: signal, peak memory, stack, output."""

    def show(rows: Sequence[Row]) -> RenderableType:
        if not rows:
            return "no job is in quarantine"
        from rich.console import Group

        hint = styled("`outlive show ID` prints all attempts, `outlive release ID` lets the job run again", style="dim")
        return Group(screen.table(KILLERS, rows, lines=True), hint)

    screen.listing(lambda: context.run(store.list_killers(limit=limit)), show, json=json, watch=watch)


@command(app)
def workers(context: CommandContext, limit: Limit = 1000, json: Json = False, watch: Watch = False) -> None:
    """List the workers, live ones first: how many jobs they run, and when they were last seen."""
    show = table_or("no worker has run lately", WORKERS)
    screen.listing(lambda: context.run(store.list_workers(limit=limit)), show, json=json, watch=watch)


@command(app)
def stuck(context: CommandContext, limit: Limit = 100, json: Json = False, watch: Watch = False) -> None:
    """List running jobs whose worker is silent. The reaper of any worker frees them."""
    show = table_or("no job is stuck", STUCK)
    screen.listing(lambda: context.run(store.list_stuck(limit=limit)), show, json=json, watch=watch)


@command(app)
def stats(
    context: CommandContext,
    lanes: Annotated[bool, typer.Option("--lanes", help="Count the waiting jobs by lane, the fullest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many lanes at most.")] = 100,
    json: Json = False,
    watch: Watch = False,
) -> None:
    """Count the jobs by state, queue and task. More than 5,000 of a state are estimated, and marked with ≈."""
    if lanes:
        show = table_or("no job waits", LANES)
        screen.listing(lambda: context.run(store.list_lanes(limit=limit)), show, json=json, watch=watch)
        return

    def look() -> Counts:
        return context.run(store.stats()), context.run(store.rates())

    screen.listing(look, _stats_table, json=json, watch=watch, shape=_counts)


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
    columns += [Column(state, _jobs_in(state, estimated=state in rough), "right") for state in seen]
    last = {"queue": "", "task": f"{screen.number(total.total(), estimated=bool(rough))} jobs", **total}
    notes = [f"{per_s:.3g} {state}" for state, per_s in ended_per_s.items()]
    return Group(
        screen.table(columns, [*lines, last]),
        *([styled("≈ is estimated from a sample of the jobs", style="dim")] if rough else []),
        *([styled(f"attempts that ended per second lately: {', '.join(notes)}", style="dim")] if notes else []),
    )


def _jobs_in(state: State, *, estimated: bool) -> Cell:
    return lambda row: styled(
        screen.number(row.get(state, 0), estimated=estimated), style="" if row.get(state) else "dim"
    )


RECORDS = (
    Column("scope", of("scope")),
    Column("source", of("source")),
    Column("key", of("dedupe_key"), shrink="fold"),
    Column("strength", lambda row: styled(f"{row['strength']:g}"), "right"),
    Column("data", lambda row: styled(screen.plain(_data(row))), shrink="cut"),
)


@command(app)
def records(
    context: CommandContext,
    scope: Annotated[str | None, typer.Option("--scope", help="Only records of this scope.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only records of this source.")] = None,
    limit: ManyRows = 10_000,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with the data as JSON.")] = False,
) -> None:
    """List the records that jobs have stored, by scope, source and key."""
    found = context.run(store.list_records(scope=scope, source=source, limit=limit))
    rows = [msgspec.structs.asdict(record) for record in found]
    if csv:
        _print_csv(rows)
    else:
        screen.listing(lambda: rows, table_or("no record matches", RECORDS), json=json, watch=False)


def _data(row: Row) -> str:
    return msgspec.json.encode(row["data"]).decode()


def _print_csv(rows: Sequence[Row]) -> None:
    writer = csv.DictWriter(sys.stdout, Record.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
        writer.writerow({**texts, "data": _data(row)})
