"""schedules: lists the schedules and their next firings; pauses, resumes, runs, sets, resets and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated

import msgspec
import typer

from outlive import store, timetable, wire
from outlive.cli import job_filter, screen
from outlive.cli.command import CommandContext, ManyRows, command, group, json_arguments
from outlive.cli.screen import Column, Listing, Row, Text, Times, of, text
from outlive.client.scheduling import refuse_unless_it_can_fire
from outlive.errors import ConfigError
from outlive.humanize import duration, one_line
from outlive.operations import facts, findings, schedule_changes
from outlive.validation import identifier

Name = Annotated[str, typer.Argument(help="The schedule.", autocompletion=job_filter.SCHEDULES)]
_STYLES = {"in trouble": "bold red", "withdrawn": "dim", "paused": "yellow", "on": "green", "ended": "dim"}


def _state(row: Row) -> Text:
    word = facts.state_of_schedule(row)
    return text((word + (f": {one_line(row['trouble'])}" if row["trouble"] else ""), _STYLES[word]))


def _when(row: Row) -> Text:
    words = f"every {duration(row['every_s'])}" if row["cron"] is None else f"{row['cron']} {row['timezone']}"
    return text(words + (" (changed)" if row["changed"] else ""))


def _firing(n: int) -> Times:
    return Times(lambda row: next(iter(row["next"][n:]), None))


def _last(row: Row) -> Text:
    if row["last_job"] is None:
        return text()
    return text(f"{row['last_job']} ", screen.state(row["last_state"]) if row["last_state"] else ("pruned", "dim"))


def _name_and_task(row: Row) -> Text:
    """Its name, and below it its task, if that is another."""
    return text(row["name"], ("" if row["name"] == row["task"] else f"\n{row['task']}", "dim"))


SCHEDULES = (
    Column("schedule", of("name"), shrink="fold", narrow=_name_and_task),
    Column("task", of("task"), shrink="fold", wide=True),
    Column("when", _when, shrink="fold"),
    Column("next firing", _firing(0), spare=1),
    Column("then", _firing(1), wide=True),
    Column("last job", _last, wide=True),
    Column("state", _state, shrink="fold"),
)
schedules_app = group("schedules")


@command(schedules_app, callback=True, example="schedules --watch")
def schedules(context: CommandContext, limit: ManyRows = 1000) -> Listing[Sequence[Row]]:
    """List the schedules; pause, resume, run, set, reset and remove them."""

    def look() -> Sequence[Row]:
        rows = facts.schedules(context.run(store.list_schedules(limit=limit)), firings=timetable.SHOWN)
        return [{**row, "args": wire.readable(row["args"])} for row in rows]

    return Listing(look, lambda rows: screen.table(SCHEDULES, rows) if rows else "there are no schedules")


@command(schedules_app, example="schedules pause report")
def pause(context: CommandContext, name: Name) -> None:
    """Stop firing a schedule. Its jobs continue."""
    context.control("pause_schedule", name)


@command(schedules_app, example="schedules resume report")
def resume(context: CommandContext, name: Name) -> None:
    """Fire a schedule again. What it has missed meanwhile follows its option `missed`."""
    context.control("resume_schedule", name)
    _warn_of_withdrawn(context, name)


@command(schedules_app, example="schedules run report")
def run(context: CommandContext, name: Name) -> None:
    """Enqueue a job of a schedule now, beside its firings, also while it is paused."""
    screen.say(str(context.audited(store.run_schedule(name), "run schedule", {"schedule": name})))


@command(schedules_app, "set", example='schedules set report --cron "0 9 * * MON-FRI"')
def set_(
    context: CommandContext,
    name: Name,
    cron: Annotated[str | None, typer.Option(help="Fire at these times.")] = None,
    every: Annotated[str | None, typer.Option(help="Fire at this interval, such as 30s, in place of --cron.")] = None,
    timezone: Annotated[str | None, typer.Option(help="The time zone of --cron, such as Europe/Berlin.")] = None,
    missed: Annotated[str | None, typer.Option(help="skip, once or all.")] = None,
    overlap: Annotated[str | None, typer.Option(help="skip, queue or cancel.")] = None,
    jitter: Annotated[str | None, typer.Option(help="Delay each firing by a part of this, such as 5m.")] = None,
    start: Annotated[str | None, typer.Option(help="No firings before this, such as 2027-01-01T00:00Z.")] = None,
    end: Annotated[str | None, typer.Option(help="No firings after this.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue of its jobs.")] = None,
    priority: Annotated[int | None, typer.Option(help="The priority of its jobs: 0, the most urgent, to 9.")] = None,
    task: Annotated[str | None, typer.Option(help="The task; a new schedule needs it.")] = None,
    args: Annotated[str | None, typer.Option(help="The arguments of its jobs, as a JSON object or array.")] = None,
) -> None:
    """Change a schedule for all workers, or make a new one with --task. Deploys keep the change; `reset` undoes it.

    With --task, a schedule that is withdrawn is in force again, and belongs to no app.
    """
    given = {"cron": cron, "every": every, "timezone": timezone, "missed": missed, "overlap": overlap}
    given |= {"jitter": jitter, "start": start, "end": end, "queue": queue}
    given |= {"priority": None if priority is None else str(priority)}
    values = schedule_changes.values_of({name: text for name, text in given.items() if text is not None}, "--")
    if args is not None:
        values["args"] = msgspec.Raw(json_arguments(args))
    if task is not None:
        values["task"] = task
    if not values:
        raise ConfigError("nothing is set: give --cron, --every or another option")
    found = {row["name"]: row for row in context.run(store.list_schedules(limit=1_000_000))}
    identifier("the name of a schedule", name)
    if name not in found and ("task" not in values or not {"cron", "every_s"} & values.keys()):
        raise ConfigError(f"there is no schedule {name}: to make it, give --task, and --cron or --every")
    context.do(refuse_unless_it_can_fire(name, found.get(name, {}), values))
    make, verb, done = (store.set_schedule, "set", "set") if name in found else (store.add_schedule, "add", "made")
    context.audited(make(name, values), f"{verb} schedule", {"schedule": name, **values})
    screen.say(f"schedule {name} is {done}")
    _warn_of_withdrawn(context, name)
    if task is not None:
        _warn_of_unknown(context, task)


def _warn_of_withdrawn(context: CommandContext, name: str) -> None:
    """A schedule that is withdrawn fires nothing, whatever was done to it."""
    for row in context.run(store.list_schedules(limit=1_000_000)):
        if row["name"] == name and row["withdrawn_at"]:
            finding = findings.withdrawn(row)
            screen.complain(f"{finding.what}: {finding.next}")


def _warn_of_unknown(context: CommandContext, task: str) -> None:
    """A task that no worker has had and no job names is most likely a wrong name."""
    known = {name for row in context.run(store.list_workers()) for name in row["tasks"] or ()}
    known |= {row["task"] for row in context.run(store.count_jobs())}
    if task not in known:
        near = get_close_matches(task, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "its jobs will wait until a worker has it"
        screen.complain(f"no worker has a task {task}: {hint}")


@command(schedules_app, example="schedules reset report")
def reset(context: CommandContext, name: Name) -> None:
    """Take back what was set: the app's declaration applies again."""
    context.control("reset_schedule", name)
    _warn_of_withdrawn(context, name)


@command(schedules_app, example="schedules remove report")
def remove(context: CommandContext, name: Name) -> None:
    """Delete a schedule. If an app declares it, the next worker of that app to start makes it again."""
    context.control("remove_schedule", name)
