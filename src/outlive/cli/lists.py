"""The lists: jobs, killers, stuck, records and audit. These commands change nothing."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from textwrap import indent
from typing import Annotated, Any

import msgspec
import typer

from outlive import program, stacks, store
from outlive.cli import screen
from outlive.cli.command import CommandContext, ManyRows, app, command
from outlive.cli.job_filter import Filter, unknown_name
from outlive.cli.screen import Column, Drawn, Listing, Row, Text, of, text, time_of
from outlive.humanize import RESTART, duration, few, moment, one_line, plain, roughly, short_id, tail, unserved
from outlive.model import Record
from outlive.operations import selection
from outlive.operations.facts import evidence

ERROR = 36
"""How much of an error a narrow list shows."""
Rows = Sequence[Row]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many rows at most, the newest first.")]


def _short_id(row: Row) -> Text:
    return text(short_id(row["id"]))


def _tries(row: Row) -> Text:
    """How many attempts the job had, and how they failed."""
    wrong = [f"{row[name]}{name[0].upper()}" for name in ("failures", "crashes", "losses") if row[name]]
    count = (row["attempt"], "" if row["attempt"] else "dim")
    return text(count, (f" ({' '.join(wrong)})" if wrong else "", "yellow"))


def _task(row: Row) -> Text:
    return text(row["task"], ("" if row["queue"] == "default" else f" in {row['queue']}", "dim"))


def _task_and_error(row: Row) -> Text:
    """Its task, and below it the beginning of its last error."""
    error = plain(one_line(row["error_message"] or ""))
    below = error if len(error) <= ERROR else error[: ERROR - 1] + "…"
    return text(_task(row), (f"\n{below}" if error else "", "red"))


def _state(row: Row) -> Text:
    """Its state, and in what time it may be claimed, if that is not yet."""
    wait_s = row.get("ready_in_s", 0.0)
    return text(screen.state(row["state"]), (f" in {roughly(wait_s)}" if wait_s > 0 else "", "dim"))


JOBS = (
    Column("job", of("id"), narrow=_short_id),
    Column("task", _task, shrink="fold", narrow=_task_and_error),
    Column("state", _state),
    Column("tries", _tries),
    Column("created", time_of("created_at"), wide=True),
    Column("last error", of("error_message", "red"), shrink="cut", wide=True),
)


@command(app, example="jobs --state failed --since 1h")
def jobs(context: CommandContext, filter: Filter, limit: Limit = 50) -> Listing[list[dict[str, Any]]]:
    """List jobs, the newest first.

    The tries 5 (2F 1C 1L) mean five attempts, with two failures, one crash and one loss among them.
    """
    wanted = filter.resolved(context)

    def look() -> list[dict[str, Any]]:
        found = context.do(store.find_page(wanted, limit=limit))
        return context.run(store.list_jobs(found.ids, wanted.states)) if found.ids else []

    def show(rows: list[dict[str, Any]]) -> Drawn:
        if not rows:
            meant = unknown_name(context, wanted).partition("; ")[2]
            return f"no job matches in {context.place}{meant and '; ' + meant}"
        waiting = [row for row in rows if row["state"] in ("pending", "retryable")]
        now = context.run(store.clock()) if waiting else 0.0
        for row in waiting:
            row["ready_in_s"] = row["ready_at"].timestamp() - now
        notes = _unserved(context, {(row["task"], row["queue"]) for row in rows if not row["served"]})
        return screen.stacked(screen.table(JOBS, rows), *(text((note, "yellow")) for note in notes))

    return Listing(look, show)


def _unserved(context: CommandContext, lanes: Collection[tuple[str, str]]) -> Iterator[str]:
    """Why no active worker takes the jobs of these tasks and queues, and what to do."""
    lacking = {(task, queue): labels for task, queue, labels in context.run(store.unserved_lanes())} if lanes else {}
    for lane in sorted(lane for lane in lanes if lacking.get(lane)):
        yield "; ".join(unserved(*lane, lacking[lane]))
    if others := sorted({lane[0] for lane in lanes if not lacking.get(lane)}):
        yield f"no active worker has the task or serves the queue of: {few(others)}; {RESTART}"


def _killer(row: Row) -> Text:
    """A job in quarantine, how its last attempt died, and its last words."""
    outcome = (row["outcome"] or "").replace("_", " ")
    on = f" on {row['killed_on']}" if row["killed_on"] else ""
    lines = (
        (row["details"] or "quarantined", "bold magenta"),
        (", ".join(filter(None, (outcome, evidence(row)))), "yellow"),
        (f"{moment(row['last_kill_at'] or row['quarantined_at'])}{on}", "dim"),
        (one_line(row["error_message"] or ""), "red"),
        (stacks.brief(row["stack"], 5) if row["stack"] else tail(row["output"] or "", 4), "dim"),
    )
    below = [(indent(plain(f"{words}\n"), "  "), style) for words, style in lines if words]
    return text((row["task"], "bold"), f"  {row['id']}\n", *below)


@command(app, example="killers --json")
def killers(context: CommandContext, limit: Limit = 100) -> Listing[Rows]:
    """List the jobs in quarantine, with the evidence: signal, peak memory, stack, output.

    `peak` is the most that the kernel has counted, with what the process shares with the worker.
    """

    def show(rows: Rows) -> Drawn:
        show, release = program.command("show ID"), program.command("release ID")
        hint = f"`{show}` prints all attempts; `{release}` runs the job again"
        return screen.stacked(*map(_killer, rows), text((hint, "dim"))) if rows else "no job is in quarantine"

    return Listing(lambda: context.run(store.list_killers(limit=limit)), show)


STUCK = (
    Column("job", of("id"), narrow=_short_id),
    Column("task", _task, shrink="fold"),
    Column("worker", of("locked_by"), shrink="fold"),
    Column("started", time_of("locked_at"), wide=True),
    Column("silent for", lambda row: text((duration(row["time_since_heartbeat_s"]), "red"))),
)


@command(app, example="stuck")
def stuck(context: CommandContext, limit: Limit = 100) -> Listing[Rows]:
    """List running jobs whose worker is silent. The reaper of any worker frees them."""
    return context.rows(store.list_stuck(limit=limit), STUCK, "no job is stuck")


def _data(row: Row) -> str:
    return msgspec.json.encode(row["data"]).decode()


RECORDS = (
    Column("scope", of("scope")),
    Column("source", of("source")),
    Column("key", of("dedupe_key"), shrink="fold"),
    Column("strength", lambda row: text(f"{row['strength']:g}"), "right"),
    Column("data", lambda row: text(_data(row)), shrink="cut"),
)


@command(app, example="records --scope prices --csv")
def records(
    context: CommandContext,
    scope: Annotated[str | None, typer.Option(help="Only records of this scope.")] = None,
    source: Annotated[str | None, typer.Option(help="Only records of this source.")] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    limit: ManyRows = 10_000,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with the data as JSON.")] = False,
) -> Listing[Rows]:
    """List the records that jobs have stored, by scope, source and key."""

    def look() -> Rows:
        found = context.run(store.list_records(scope=scope, source=source, key=key, limit=limit))
        return [dataclasses.asdict(record) for record in found]

    if csv:
        return Listing(look, _as_csv, once="--csv")
    return Listing(look, lambda rows: screen.table(RECORDS, rows) if rows else "no record matches")


def _as_csv(rows: Rows) -> str:
    import csv  # Not at the top: no other list needs it.

    file = io.StringIO()
    writer = csv.DictWriter(file, [one.name for one in dataclasses.fields(Record)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
        writer.writerow({**texts, "data": _data(row)})
    return file.getvalue().removesuffix("\n")


def _what(row: Row) -> Text:
    """The ids, the filter or the name, in a few words."""
    chosen = (selection.in_words(key, value) for key, value in msgspec.json.decode(row["what"]).items())
    return text("; ".join(f"{name} {moment(said) if isinstance(said, datetime) else said}" for name, said in chosen))


AUDIT = (
    Column("when", time_of("at")),
    Column("who", of("who"), shrink="fold"),
    Column("action", of("action")),
    Column("jobs", lambda row: text(f"{row['jobs']:,}" if row["jobs"] else ""), "right"),
    Column("what", _what, shrink="fold"),
)


@command(app, example="audit --limit 10")
def audit(context: CommandContext, limit: ManyRows = 50) -> Listing[Rows]:
    """List what operators have done, the latest first: who, when, and to how many jobs. Kept for 90 days."""
    return context.rows(
        store.list_audit(limit=limit),
        AUDIT,
        "no operator has changed anything yet",
        shape=lambda rows: [{**row, "what": msgspec.Raw(row["what"])} for row in rows],
    )
