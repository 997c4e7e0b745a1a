"""The operator's commands: retry, repeat, cancel, release and prune jobs, drain a worker, and reload workers.

Jobs are given by id, or chosen by a filter together with `--all`. `states.legal` says which states a command accepts.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from outlive import db, migrate, store
from outlive.cli import job_filter, screen
from outlive.cli.command import CommandContext, Json, Yes, app, command, confirm, operator
from outlive.cli.job_filter import Filter, found_id
from outlive.errors import ConfigError, OutliveError, WorkerNotFound
from outlive.humanize import counted
from outlive.operations import selection, verbs
from outlive.operations.verbs import CANCEL, PRUNE, RELEASE, REPEAT, RETRY, Tally, Verb
from outlive.store import JobFilter

EVERY_S = 0.5
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The jobs; the first digits of an id are enough.")
]
All = Annotated[bool, typer.Option("--all", help="Every job that matches the filter; required if no id is given.")]
_NAMED = {"help": "The worker, as `outlive workers` names it.", "autocompletion": job_filter.WORKERS}
WorkerName = Annotated[str, typer.Argument(**_NAMED)]
WorkerNames = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", **_NAMED)]
GONE = ("dead", "stopped")


def _add_command(verb: Verb, example: str, help: str) -> None:
    """A command that applies a verb to jobs."""

    def run(
        context: CommandContext, filter: Filter, ids: Ids = None, all: All = False, yes: Yes = False, json: Json = False
    ) -> None:
        _expect_one_choice(verb, ids, filter or all)
        if not ids and not all:
            raise ConfigError(
                f"{verb.name} needs ids, or --all for every job that matches --state, --task, --queue or another filter"
            )
        _report(_act(context, verb, ids or filter.resolved(context), yes=yes, json=json), json=json)

    run.__doc__ = help
    command(app, verb.name, example=f"{verb.name} {example}")(run)


_add_command(
    RETRY,
    "--all --task shop.fetch --since 2h",
    "Run failed, cancelled or retryable jobs now, with all counters at zero. --all takes the failed ones.",
)
_add_command(REPEAT, "ID", "Run succeeded jobs again, as new jobs. --all needs --state succeeded.")
_add_command(CANCEL, "--all --state pending --queue slow", "Cancel jobs. A running job is stopped by its worker.")
_add_command(
    RELEASE, "ID", "Release quarantined or blocked jobs, with crashes and losses at zero. --all takes quarantined ones."
)


@command(app, example="prune --state failed --older-than 30d")
def prune(context: CommandContext, filter: Filter, ids: Ids = None, yes: Yes = False, json: Json = False) -> None:
    """Delete jobs: those past their retention, those given by id, or all in --state (and --older-than)."""
    _expect_one_choice(PRUNE, ids, filter)
    if ids or filter.state:
        tally = _act(context, PRUNE, ids or filter.resolved(context), yes=yes, json=json)
    elif filter:
        raise ConfigError("prune with a filter needs --state: say which jobs to delete")
    else:
        pruned = _prune_old(context)
        tally = Tally(PRUNE, jobs=pruned, changed=pruned)
    if json and not tally.interrupted:
        screen.print_json({"pruned": tally.changed})
    else:
        _report(tally, json=False)


def _expect_one_choice(verb: Verb, ids: Sequence[str] | None, others: object) -> None:
    if ids and others:
        raise ConfigError(f"{verb.name} was given ids and a filter: give only one of them")


def _act(context: CommandContext, verb: Verb, chosen: JobFilter | list[str], *, yes: bool, json: bool) -> Tally:
    """Apply a verb to jobs; to those of a filter after a question. Ctrl-C ends it after the portion under way."""
    tally = Tally(verb, keeps_all=json)
    jobs: JobFilter | list[UUID]
    if isinstance(chosen, JobFilter):
        jobs = context.do(selection.fixed(verb.narrowed(chosen)))
        count = context.do(selection.count(jobs))
        if not count.jobs:
            if unknown := job_filter.unknown_name(context, jobs):
                raise ConfigError(unknown)
            return tally
        confirm(f"{verb.name} {count}{_window(jobs)}", yes=yes)
        total = None if count.more or count.estimated else count.jobs
    else:
        jobs = list(dict.fromkeys(found_id(context, "job", digits) for digits in chosen))
        total = len(jobs)
    with screen.progress(verb.name, total) as advance, _interruptible() as interrupted:
        context.do(verbs.act(tally, jobs, operator(), stop=lambda done: advance(done) or interrupted()))
    return tally


def _window(jobs: JobFilter) -> str:
    """The times of a filter as options, which mean the same jobs when they are given later."""
    ends = (("--since", jobs.since), ("--older-than", jobs.before))
    words = " ".join(f"{option} {at.astimezone().isoformat()}" for option, at in ends if at)
    return f" ({words})" if words else ""


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that returns whether Ctrl-C was pressed. The second Ctrl-C interrupts as usual."""
    pressed: list[int] = []

    def note(number: int, _: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _report(tally: Tally, *, json: bool) -> None:
    """Print what was done. Exit code 1 if there were jobs and none was changed, 130 after Ctrl-C."""
    if json:
        screen.print_json([msgspec.structs.asdict(change) for change in tally.changes])
    else:
        if tally.changed or not tally.jobs:
            screen.say(str(tally) if tally.jobs else ("no job matches: nothing was changed", "dim"))
        for change in tally.repeated:
            screen.say(f"{change.id}: {change.note}")
        for change in tally.unchanged:
            note = change.note or ""  # One with a hint names the state in its own words.
            state = "" if ": " in note else f" is {change.state}"
            screen.say(("not changed: ", "yellow"), f"{change.id}{state}: {note}")
        if (more := tally.jobs - tally.changed - len(tally.unchanged)) > 0:
            screen.say((f"not changed: {more:,} more", "yellow"))
    if tally.interrupted:
        screen.complain(f"stopped by Ctrl-C: {tally}; the other jobs are as they were")
        raise typer.Exit(130)
    if tally.jobs and not tally.changed:
        raise typer.Exit(1)


def _prune_old(context: CommandContext) -> int:
    """Delete all that is past its retention, as workers do. The configuration here applies to tasks that no worker has
    registered. Returns how many jobs."""
    from outlive.worker.fleet.reaper import Pruning  # Not at the top: no other command here needs a worker's parts.
    from outlive.worker.session import Session

    async def prune(url: str) -> int:
        session = Session(url)
        try:
            return await Pruning(session, context.config).run_once()
        finally:
            await session.close()

    with db.translated_errors():
        return asyncio.run(prune(migrate.ready(context.config)))


@command(app, example="drain web-7 --no-wait")
def drain(
    context: CommandContext,
    names: WorkerNames = None,
    all: Annotated[bool, typer.Option("--all", help="All workers that are alive.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the workers are gone.")] = True,
) -> None:
    """Tell workers to take no more jobs, finish those that they run, and stop.

    A worker learns of this at once, or with its next heartbeat behind a pooler. Ctrl-C only ends the waiting.
    """
    if bool(names) is all:
        raise ConfigError("drain needs the names of workers, or --all, and not both")
    names = names or sorted({row["name"] for row in _workers(context) if row["state"] not in GONE})
    if not names:
        raise WorkerNotFound("no worker is alive")
    ids = [id for name in names for id in told(context, "drain_worker", name)]
    printed = None
    while wait:
        mine = _workers(context, ids)
        left = [row for row in mine if row["state"] not in GONE]
        if not left:
            if died := sorted({row["name"] for row in mine if row["state"] == "dead"}):
                raise OutliveError(f"{', '.join(died)} died before all jobs had finished; these run elsewhere")
            for name in names:
                screen.say(f"{name} has stopped")
            return
        if (jobs := sum(row["running"] for row in left)) != printed:
            screen.say(f"{counted(jobs, 'job')} still running")
            printed = jobs
        time.sleep(EVERY_S)


@command(app, example="reload web-7")
def reload(
    context: CommandContext,
    names: WorkerNames = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the workers have reloaded.")] = True,
) -> None:
    """Tell workers to import their code again, without a name all of them.

    Jobs that run go on with the old code. A worker that can't import the new code keeps the old one, and the command
    fails. Ctrl-C only ends the waiting.
    """
    living = {row["name"] for row in _workers(context) if row["app"] and row["state"] in ("active", "stale")}
    if not (names or living):
        raise WorkerNotFound("no worker is alive")
    ids = [id for name in names or sorted(living) for id in told(context, "reload_worker", name)]
    while wait:
        mine = _workers(context, ids)
        if any(row["state"] not in GONE and row["reload_requested_at"] for row in mine):
            time.sleep(EVERY_S)
            continue
        if old := [f"{row['name']} keeps the old code: {row['reload_error']}" for row in mine if row["reload_error"]]:
            raise OutliveError("; ".join(old))
        reloaded = [row for row in mine if row["state"] not in GONE]
        screen.say(f"{counted(len(reloaded), 'worker has', 'workers have')} reloaded")
        return


def told(context: CommandContext, action: str, name: str, values: Mapping[str, Any] | None = None) -> list[UUID]:
    """Tell the workers of a name to do something; their ids."""
    ids: list[UUID] = context.control(action, name, values)
    if not ids:
        alive = sorted({row["name"] for row in _workers(context) if row["state"] not in GONE})
        raise WorkerNotFound(f"no worker {name} is alive; these are: {', '.join(alive[:10]) or 'no worker at all'}")
    return ids


def _workers(context: CommandContext, ids: Collection[UUID] | None = None) -> list[dict[str, Any]]:
    return [row for row in context.run(store.list_workers(limit=10_000)) if ids is None or row["id"] in ids]
