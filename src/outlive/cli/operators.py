"""The operator's commands on jobs: retry, cancel, release and prune.

Jobs are given by id, or chosen by a filter together with `--all`. `states.legal` says which states a command accepts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated
from uuid import UUID

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from outlive import config, db, store, validation
from outlive.cli import screen
from outlive.cli.command import CommandContext, JobFilter, Json, app, command
from outlive.errors import ConfigError
from outlive.model import Change
from outlive.states import State, legal

BATCH = 500
MOST = 1_000_000
NAMED = 20
"""How many unchanged jobs are listed by id; the rest are counted."""

Ids = Annotated[list[UUID] | None, typer.Argument(metavar="ID", help="The jobs.")]
All = Annotated[bool, typer.Option("--all", help="Every job that matches the filter; required if no id is given.")]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", help="Only jobs that are in that state for this long, e.g. 30d.")
]
Verb = Callable[[Iterable[UUID]], db.Statement[list[Change]]]


def _taken_by(verb: str) -> list[State]:
    return [state for state in State if legal(verb, state)]


_HELP = {
    "retry": "Run failed, cancelled or retryable jobs now, with all counters at zero. --all takes the failed ones.",
    "cancel": "Cancel jobs. A running job is stopped by its worker.",
    "release": "Release quarantined or blocked jobs, with crashes and losses at zero. --all takes quarantined ones.",
}


def _add_command(name: str, verb: Verb, *, done: str, states: Sequence[State]) -> None:
    """A command that applies a verb to jobs, by default to those of `states`."""

    def run(context: CommandContext, filter: JobFilter, ids: Ids = None, all: All = False, json: Json = False) -> None:
        if ids and (all or filter):
            raise ConfigError(f"{name} was given ids and a filter: give only one of them")
        if not ids and not all:
            raise ConfigError(
                f"{name} needs ids, or --all for every job that matches --state, --task, --queue or --batch"
            )
        chosen = list(dict.fromkeys(ids)) if ids else _choose(context, name, filter, states)
        _change(context, verb, chosen, done, json)

    run.__doc__ = _HELP[name]
    command(app, name)(run)


_add_command("retry", store.retry, done="retried", states=[State.FAILED])
_add_command("cancel", store.cancel, done="cancelled", states=_taken_by("cancel"))
_add_command("release", store.release, done="released", states=[State.QUARANTINED])


def _choose(
    context: CommandContext, verb: str, filter: JobFilter, states: Sequence[State] = (), older_s: float | None = None
) -> list[UUID]:
    """The jobs that match the filter, by default of `states`."""
    if filter.state and filter.state not in _taken_by(verb):
        raise ConfigError(f"{verb} does not apply to {filter.state} jobs: use {', '.join(_taken_by(verb))}")
    states = [filter.state] if filter.state else states
    chosen = store.choose(states, task=filter.task, queue=filter.queue, batch=filter.batch, older_s=older_s, limit=MOST)
    return context.run(chosen)


def _change(context: CommandContext, verb: Verb, ids: list[UUID], done: str, json: bool) -> None:
    """Apply a verb in batches and print the changes. Exit code 1 if there were jobs and none was changed."""
    changes: dict[UUID, Change] = {}
    for batch in _with_progress(ids, done):
        changes |= {change.id: change for change in context.run(verb(batch))}
    told = [changes.get(id, Change(id, "unknown", False, "there is no such job")) for id in ids]
    changed = sum(change.changed for change in told)
    if json:
        screen.print_json([msgspec.structs.asdict(change) for change in told])
    else:
        _tell(done, told, changed)
    if ids and not changed:
        raise typer.Exit(1)


def _tell(done: str, told: list[Change], changed: int) -> None:
    stopping = sum(change.changed and change.state == State.RUNNING for change in told)
    if len(told) == 0:
        screen.say(Text("no job matches: nothing was changed", style="dim"))
    elif stopping:
        screen.say(f"{changed - stopping:,} {done}, {stopping:,} asked to stop")
    elif changed:
        screen.say(f"{changed:,} {done}")
    _tell_unchanged([(change.id, change.state, change.note or "") for change in told if not change.changed])


def _tell_unchanged(unchanged: Sequence[tuple[UUID, str, str]]) -> None:
    for id, state, note in unchanged[:NAMED]:
        line = Text("not changed: ", style="yellow")
        screen.say(line.append(screen.plain(f"{id} is {state}: {note}"), style="default"))
    if len(unchanged) > NAMED:
        screen.say(Text(f"not changed: {len(unchanged) - NAMED:,} more", style="yellow"))


def _batches(ids: list[UUID]) -> list[list[UUID]]:
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


def _with_progress(ids: list[UUID], done: str) -> Iterator[list[UUID]]:
    with _progress(TimeRemainingColumn()) as progress:
        bar = progress.add_task(done, total=len(ids))
        for batch in _batches(ids):
            yield batch
            progress.advance(bar, len(batch))


def _progress(*more: TimeRemainingColumn) -> Progress:
    """A bar on stderr, only on a terminal, which is removed at the end."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *more)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@command(app)
def prune(
    context: CommandContext, filter: JobFilter, ids: Ids = None, older_than: OlderThan = None, json: Json = False
) -> None:
    """Delete jobs: those past their retention, those given by id, or all in --state (and --older-than)."""
    unchanged: list[tuple[UUID, str, str]] = []
    if ids and (filter or older_than):
        raise ConfigError("prune was given ids and a filter: give only one of them")
    if ids:
        pruned, unchanged = _prune_ids(context, list(dict.fromkeys(ids)))
    elif filter.state:
        older_s = validation.optional(validation.seconds)("--older-than", older_than)
        pruned = _prune(context, _choose(context, "prune", filter, older_s=older_s))
    elif filter or older_than:
        raise ConfigError("prune with a filter needs --state: say which jobs to delete")
    else:
        pruned = _prune_old(context)
    if json:
        screen.print_json({"pruned": pruned})
    else:
        screen.say(f"{pruned:,} pruned")
        _tell_unchanged(unchanged)
    if ids and not pruned:
        raise typer.Exit(1)


def _prune(context: CommandContext, ids: list[UUID]) -> int:
    return sum(context.run(store.prune_jobs(batch)) for batch in _with_progress(ids, "pruned"))


def _prune_ids(context: CommandContext, ids: list[UUID]) -> tuple[int, list[tuple[UUID, str, str]]]:
    """How many are gone, and why the others are not."""
    known = {id for batch in _batches(ids) for id in context.run(store.statuses(batch))}
    pruned = _prune(context, ids)
    left = {id: state for batch in _batches(ids) for id, state in context.run(store.statuses(batch)).items()}
    unchanged = [(id, "unknown", "there is no such job") for id in ids if id not in known]
    unchanged += [(id, str(state), "only finished and quarantined jobs can be pruned") for id, state in left.items()]
    return pruned, unchanged


def _prune_old(context: CommandContext) -> int:
    """Delete the jobs that are past the configured retention, in batches, the oldest first."""
    keep_s = dict.fromkeys((State.SUCCEEDED, State.CANCELLED), context.config.keep_finished_s)
    keep_s[State.FAILED] = context.config.keep_failed_s
    pruned = 0
    with _progress() as progress:
        bar = progress.add_task("pruned", total=None)
        for state in keep_s:
            more = True
            while more:
                gone, more = context.run(store.prune_finished(state, keep_s=keep_s[state]))
                more = more and gone > 0  # Rows that another transaction has locked are left for the next run.
                pruned += gone
                progress.update(bar, completed=pruned)
    context.run(store.prune_batches(keep_s=max(keep_s.values())))
    context.run(store.prune_workers(keep_s=config.KEEP_WORKERS_S))
    return pruned
