"""schedules: lists the schedules and their next firings; pauses, resumes, runs, sets, resets and removes them."""

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from outlive import store, ticks, wire
from outlive.cli import completion, screen
from outlive.cli.choosing import json_arguments
from outlive.cli.command import LOOK, CommandContext, Json, ManyRows, Watch, app, command
from outlive.cli.screen import Column, Row, of, table_or
from outlive.client.schedule import OPTIONS
from outlive.errors import ConfigError
from outlive.operations import facts, findings
from outlive.validation import identifier

Name = Annotated[str, typer.Argument(help="The schedule.", autocompletion=completion.schedules)]
NEXT_IN_JSON = 5

schedules_app = typer.Typer()
app.add_typer(schedules_app, name="schedules", rich_help_panel=LOOK)


_STYLES = {"in trouble": "bold red", "withdrawn": "dim", "paused": "yellow", "on": "green", "ended": "dim"}


def _state(row: Row) -> Text:
    word = facts.state_of_schedule(row)
    why = f": {screen.plain(screen.one_line(row['trouble']))}" if row["trouble"] else ""
    return Text(f"{word}{why}", style=_STYLES[word])


def _when(row: Row) -> Text:
    words = f"every {screen.duration(row['every_s'])}" if row["cron"] is None else f"{row['cron']} {row['timezone']}"
    return Text(screen.plain(words) + (" (changed)" if row["changed"] else ""))


def _firing(row: Row, n: int) -> Text:
    return Text("".join(screen.brief(tick) for tick in row["next"][n : n + 1]))


def _last(row: Row) -> Text:
    if row["last_job"] is None:
        return Text("")
    state = row["last_state"]
    return Text(f"{row['last_job']} ").append(screen.state(state) if state else Text("pruned", style="dim"))


SCHEDULES = (
    Column("schedule", of("name"), shrink="fold"),
    Column("task", of("task"), shrink="fold"),
    Column("when", _when, shrink="fold"),
    Column("next firing", lambda row: _firing(row, 0), spare=1),
    Column("then", lambda row: _firing(row, 1), luxury=True),
    Column("last job", _last, luxury=True),
    Column("state", _state, shrink="fold"),
)


def _name_and_task(row: Row) -> Text:
    """Its name, and below it its task, if that is another."""
    text = Text(screen.plain(row["name"]))
    return text if row["name"] == row["task"] else text.append(f"\n{screen.plain(row['task'])}", style="dim")


NARROW_SCHEDULES = (Column("schedule", _name_and_task, shrink="fold"), *SCHEDULES[2:])


@command(schedules_app, callback=True)
def schedules(
    context: CommandContext, group: typer.Context, limit: ManyRows = 1000, json: Json = False, watch: Watch = False
) -> None:
    """List the schedules; pause, resume, run, set, reset and remove them.

    Example: outlive schedules --watch
    """
    if not context.has_subcommand(group):
        show = table_or("there are no schedules", NARROW_SCHEDULES if screen.is_narrow() else SCHEDULES)
        screen.listing(lambda: _listed(context, limit), show, json=json, watch=watch)


@command(schedules_app)
def pause(context: CommandContext, name: Name) -> None:
    """Stop firing a schedule. Its jobs continue.

    Example: outlive schedules pause report
    """
    context.control("pause_schedule", name)


@command(schedules_app)
def resume(context: CommandContext, name: Name) -> None:
    """Fire a schedule again. What it has missed meanwhile follows its option `missed`.

    Example: outlive schedules resume report
    """
    context.control("resume_schedule", name)
    _warn_of_withdrawn(context, name)


@command(schedules_app)
def run(context: CommandContext, name: Name) -> None:
    """Enqueue a job of a schedule now, beside its firings, also while it is paused.

    Example: outlive schedules run report
    """
    screen.say(Text(str(context.audited(store.run_schedule(name), "run schedule", {"schedule": name}))))


@command(schedules_app, "set")
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

    Example: outlive schedules set report --cron "0 9 * * MON-FRI"
    """
    if cron is not None and every is not None:
        raise ConfigError("--cron and --every are both given: give only one of them")
    given: dict[str, object] = {"every": every, "timezone": timezone, "missed": missed, "overlap": overlap}
    given |= {"jitter": jitter, "start": _moment(start), "end": _moment(end), "queue": queue, "priority": priority}
    values = {
        field: check(f"--{name}", given[name])
        for name, (field, check) in OPTIONS.items()
        if given.get(name) is not None
    }
    if cron is not None or every is not None:
        values = {"every_s": None, "cron": cron, **values}
    if args is not None:
        values["args"] = msgspec.Raw(json_arguments(args))
    if task is not None:
        values["task"] = task
    if not values:
        raise ConfigError("nothing is set: give --cron, --every or another option")
    found = {row["name"]: row for row in context.run(store.list_schedules(limit=1_000_000))}
    _check(identifier("the name of a schedule", name), found.get(name, {}), values)
    make, verb, done = (store.set_schedule, "set", "set") if name in found else (store.add_schedule, "add", "made")
    context.audited(make(name, values), f"{verb} schedule", {"schedule": name, **values})
    screen.say(Text(f"schedule {screen.plain(name)} is {done}"))
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
    known |= {row["task"] for row in context.run(store.stats())}
    if task not in known:
        near = get_close_matches(task, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "its jobs will wait until a worker has it"
        screen.complain(f"no worker has a task {task}: {hint}")


@command(schedules_app)
def reset(context: CommandContext, name: Name) -> None:
    """Take back what was set: the app's declaration applies again.

    Example: outlive schedules reset report
    """
    context.audited(store.reset_schedule(name), "reset schedule", {"schedule": name})
    screen.say(Text(f"schedule {screen.plain(name)} is as its app declares it"))
    _warn_of_withdrawn(context, name)


@command(schedules_app)
def remove(context: CommandContext, name: Name) -> None:
    """Delete a schedule. If an app declares it, the next worker of that app to start makes it again.

    Example: outlive schedules remove report
    """
    context.audited(store.remove_schedule(name), "remove schedule", {"schedule": name})
    screen.say(Text(f"schedule {screen.plain(name)} is removed"))


def _listed(context: CommandContext, limit: int) -> list[dict[str, Any]]:
    rows = facts.schedules(context.run(store.list_schedules(limit=limit)), firings=NEXT_IN_JSON)
    return [{**row, "args": wire.readable(row["args"])} for row in rows]


def _moment(text: str | None) -> object:
    """The time that a text names, or the text itself, which the check refuses."""
    try:
        return text and datetime.fromisoformat(text)
    except ValueError:
        return text


def _check(name: str, row: Mapping[str, Any], values: Mapping[str, object]) -> None:
    """Refuse what no worker could fire."""
    if not row and ("task" not in values or not {"cron", "every_s"} & values.keys()):
        raise ConfigError(f"there is no schedule {name}: to make it, give --task, and --cron or --every")
    ticks.timetable(ticks.schedule_in({**row, **values, "name": name}))
