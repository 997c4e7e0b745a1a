"""The lists: jobs, killers, workers, stuck and records. These commands change nothing."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import datetime
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive import program, stacks, store
from outlive.cli import screen
from outlive.cli.choosing import Filter
from outlive.cli.command import LOOK, CommandContext, Json, ManyRows, Watch, app, command
from outlive.cli.screen import Column, Row, of, styled, table_or, time_of
from outlive.errors import ConfigError
from outlive.model import Record
from outlive.operations import selection
from outlive.operations.facts import evidence
from outlive.wording import RESTART, few, short_id

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

ERROR = 36
"""How much of an error a narrow list shows."""
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many rows at most, the newest first.")]


def tries(row: Row) -> Text:
    """How many attempts the job had, and how they failed."""
    wrong = [f"{row[name]}{name[0].upper()}" for name in ("failures", "crashes", "losses") if row[name]]
    text = styled(str(row["attempt"]), style="" if row["attempt"] else "dim")
    return text.append(f" ({' '.join(wrong)})", style="yellow") if wrong else text


def task_in_queue(row: Row) -> Text:
    text = styled(screen.plain(row["task"]))
    return text if row["queue"] == "default" else text.append(f" in {screen.plain(row['queue'])}", style="dim")


def state_and_wait(row: Row) -> Text:
    """Its state, and in what time it may be claimed, if that is not yet."""
    text = screen.state(row["state"])
    wait_s = row.get("ready_in_s", 0.0)
    return text.append(f" in {screen.roughly(wait_s)}", style="dim") if wait_s > 0 else text


def task_and_error(row: Row) -> Text:
    """Its task, and below it the beginning of its last error."""
    text = task_in_queue(row)
    if not row["error_message"]:
        return text
    error = screen.plain(screen.one_line(row["error_message"]))
    return text.append("\n" + (error if len(error) <= ERROR else error[: ERROR - 1] + "…"), style="red")


JOBS = (
    Column("job", of("id")),
    Column("task", task_in_queue, shrink="fold"),
    Column("state", state_and_wait),
    Column("tries", tries),
    Column("created", time_of("created_at"), luxury=True),
    Column("last error", of("error_message", "red"), shrink="cut", luxury=True),
)
SHORT_ID = Column("job", lambda row: styled(short_id(row["id"])))
NARROW_JOBS = (SHORT_ID, Column("task", task_and_error, shrink="fold"), *JOBS[2:])
STUCK = (
    Column("job", of("id")),
    Column("task", task_in_queue, shrink="fold"),
    Column("worker", of("locked_by"), shrink="fold"),
    Column("started", time_of("locked_at"), luxury=True),
    Column("silent for", lambda row: styled(screen.duration(row["time_since_heartbeat_s"]), style="red")),
)
WORKERS = (
    Column("worker", lambda row: styled(screen.plain(row["name"])).append(f"\n{row['id']}", style="dim")),
    Column("state", lambda row: styled(row["state"], style=screen.WORKER_STYLES[row["state"]])),
    Column(
        "where", lambda row: styled(screen.plain(f"{row['hostname']}, pid {row['pid']}")), shrink="fold", luxury=True
    ),
    Column("running", lambda row: styled(f"{row['running']} of {row['slots']}"), "right"),
    Column(
        "memory",
        lambda row: styled(screen.size(row["memory_bytes"]) if row["memory_bytes"] else ""),
        "right",
        luxury=True,
    ),
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

    def look() -> list[dict[str, Any]]:
        ids = context.do(selection.page(wanted, limit=limit)).ids
        return context.run(store.list_jobs(ids)) if ids else []

    def show(rows: list[dict[str, Any]]) -> RenderableType:
        waiting = [row for row in rows if row["state"] in ("pending", "retryable")]
        now = context.run(store.clock()) if waiting else 0.0
        for row in waiting:
            row["ready_in_s"] = row["ready_at"].timestamp() - now
        return _jobs_table(rows) if rows else f"no job matches in {context.place}{_hint(context, filter.task)}"

    screen.listing(look, show, json=json, watch=watch)


def _hint(context: CommandContext, task: str | None) -> str:
    """The task that was meant, if no job has a task of this name."""
    if task is None:
        return ""
    from difflib import get_close_matches

    known = sorted({row["task"] for row in context.run(store.stats())})
    near = [name for name in known if name.endswith(f".{task}")] or get_close_matches(task, known, n=1)
    return f"; did you mean --task {screen.plain(near[0])}?" if near and task not in known else ""


def _jobs_table(rows: Sequence[Row]) -> RenderableType:
    unserved = sorted({row["task"] for row in rows if not row["served"]})
    table = screen.table(NARROW_JOBS if screen.is_narrow() else JOBS, rows)
    return screen.group(
        table,
        *([f"no active worker has the task or serves the queue of: {few(unserved)}; {RESTART}"] if unserved else []),
        style="yellow",
    )


def _killer(row: Row) -> Text:
    """A job in quarantine, how its last attempt died, and its last words."""
    outcome = (row["outcome"] or "").replace("_", " ")
    on = f" on {row['killed_on']}" if row["killed_on"] else ""
    last_words = stacks.brief(row["stack"], 5) if row["stack"] else screen.tail(row["output"] or "", 4)
    lines = (
        ("bold magenta", row["details"] or "quarantined"),
        ("yellow", ", ".join(filter(None, (outcome, evidence(row))))),
        ("dim", f"{screen.moment(row['last_kill_at'] or row['quarantined_at'])}{on}"),
        ("red", screen.one_line(row["error_message"] or "")),
        ("dim", last_words),
    )
    text = styled(screen.plain(row["task"]), style="bold").append(f"  {row['id']}\n", style="not bold")
    for style, words in lines:
        text.append(indent(screen.plain(f"{words}\n"), "  ") if words else "", style=f"not bold {style}")
    return text


@command(app, panel=LOOK)
def killers(context: CommandContext, limit: Limit = 100, json: Json = False, watch: Watch = False) -> None:
    """List the jobs in quarantine, with the evidence: signal, peak memory, stack, output.

    `peak` is the most that the kernel has counted, with what the process shares with the worker.

    Example: outlive killers --json
    """

    def show(rows: Sequence[Row]) -> RenderableType:
        if not rows:
            return "no job is in quarantine"
        show, release = program.command("show ID"), program.command("release ID")
        hint = f"`{show}` prints all attempts; `{release}` runs the job again"
        return screen.group(*map(_killer, rows), hint, style="dim")

    screen.listing(lambda: context.run(store.list_killers(limit=limit)), show, json=json, watch=watch)


@command(app, panel=LOOK)
def workers(context: CommandContext, limit: Limit = 1000, json: Json = False, watch: Watch = False) -> None:
    """List the workers, live ones first: how many jobs they run, and when they were last seen.

    Example: outlive workers --watch
    """

    def show(rows: Sequence[Row]) -> RenderableType:
        if not rows:
            return "no worker has run lately"
        troubled = [f"{row['name']} starts no job: {row['trouble']}" for row in rows if row["trouble"]]
        return screen.group(screen.table(WORKERS, rows), *troubled, style="bold red")

    screen.listing(lambda: context.run(store.list_workers(limit=limit)), show, json=json, watch=watch)


@command(app, panel=LOOK)
def stuck(context: CommandContext, limit: Limit = 100, json: Json = False, watch: Watch = False) -> None:
    """List running jobs whose worker is silent. The reaper of any worker frees them.

    Example: outlive stuck
    """
    show = table_or("no job is stuck", (SHORT_ID, *STUCK[1:]) if screen.is_narrow() else STUCK)
    screen.listing(lambda: context.run(store.list_stuck(limit=limit)), show, json=json, watch=watch)


RECORDS = (
    Column("scope", of("scope")),
    Column("source", of("source")),
    Column("key", of("dedupe_key"), shrink="fold"),
    Column("strength", lambda row: styled(f"{row['strength']:g}"), "right"),
    Column("data", lambda row: styled(screen.plain(_data(row))), shrink="cut"),
)


@command(app, panel=LOOK)
def records(
    context: CommandContext,
    scope: Annotated[str | None, typer.Option(help="Only records of this scope.")] = None,
    source: Annotated[str | None, typer.Option(help="Only records of this source.")] = None,
    limit: ManyRows = 10_000,
    json: Json = False,
    watch: Watch = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with the data as JSON.")] = False,
) -> None:
    """List the records that jobs have stored, by scope, source and key.

    Example: outlive records --scope prices --csv
    """
    if csv and watch:
        raise ConfigError("--csv and --watch are both given: give only one of them")

    def look() -> list[dict[str, Any]]:
        found = context.run(store.list_records(scope=scope, source=source, limit=limit))
        return [msgspec.structs.asdict(record) for record in found]

    if csv:
        _print_csv(look())
    else:
        screen.listing(look, table_or("no record matches", RECORDS), json=json, watch=watch)


def _data(row: Row) -> str:
    return msgspec.json.encode(row["data"]).decode()


def _print_csv(rows: Sequence[Row]) -> None:
    writer = csv.DictWriter(sys.stdout, Record.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
        writer.writerow({**texts, "data": _data(row)})
