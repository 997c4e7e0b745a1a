"""The operator's commands on jobs: retry, cancel, release and prune.

Jobs are given by id, or chosen by a filter together with `--all`. `states.legal` says which states a command accepts.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from outlive import config, store, validation
from outlive.cli import choosing, screen
from outlive.cli.choosing import PORTION, Done, Filter, Yes
from outlive.cli.command import ACT, CommandContext, Json, app, command
from outlive.errors import ConfigError
from outlive.states import State, legal
from outlive.store import JobFilter, Verb

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The jobs; the first digits of an id are enough.")
]
All = Annotated[bool, typer.Option("--all", help="Every job that matches the filter; required if no id is given.")]
OlderThan = Annotated[str | None, typer.Option(help="Only jobs that have been in their state for this long, e.g. 30d.")]
_PAST: dict[Verb, str] = {"retry": "retried", "cancel": "cancelled", "release": "released", "prune": "pruned"}


def _taken_by(verb: str) -> tuple[State, ...]:
    return tuple(state for state in State if legal(verb, state))


_HELP: dict[Verb, str] = {
    "retry": """Run failed, cancelled or retryable jobs now, with all counters at zero. --all takes the failed ones.

    Example: outlive retry --all --task shop.fetch --since 2h""",
    "cancel": """Cancel jobs. A running job is stopped by its worker.

    Example: outlive cancel --all --state pending --queue slow""",
    "release": """Release quarantined or blocked jobs, with crashes and losses at zero. --all takes quarantined ones.

    Example: outlive release ID""",
}


def _add_command(verb: Verb, *, states: Sequence[State]) -> None:
    """A command that applies a verb to jobs, by default to those of `states`."""

    def run(
        context: CommandContext, filter: Filter, ids: Ids = None, all: All = False, yes: Yes = False, json: Json = False
    ) -> None:
        if ids and (all or filter):
            raise ConfigError(f"{verb} was given ids and a filter: give only one of them")
        if ids:
            done = _on_ids(context, verb, ids, json=json)
        elif all:
            done = _on_all(context, verb, _with_states(verb, filter.resolved(context), states), yes=yes, json=json)
        else:
            raise ConfigError(
                f"{verb} needs ids, or --all for every job that matches --state, --task, --queue or another filter"
            )
        _report(verb, done, json=json)

    run.__doc__ = _HELP[verb]
    command(app, verb, panel=ACT)(run)


_add_command("retry", states=[State.FAILED])
_add_command("cancel", states=_taken_by("cancel"))
_add_command("release", states=[State.QUARANTINED])


def _with_states(verb: str, wanted: JobFilter, default: Sequence[State]) -> JobFilter:
    """The filter, with the states that the verb takes."""
    for state in wanted.states:
        if state not in _taken_by(verb):
            raise ConfigError(f"{verb} does not apply to {state} jobs: use {', '.join(_taken_by(verb))}")
    return wanted if wanted.states else msgspec.structs.replace(wanted, states=tuple(default))


def _on_ids(context: CommandContext, verb: Verb, given: Sequence[str], *, json: bool) -> Done:
    ids = list(dict.fromkeys(choosing.found_id(context, "job", text) for text in given))
    portions = (ids[start : start + PORTION] for start in range(0, len(ids), PORTION))
    return choosing.act(context, verb, portions, total=len(ids), json=json)


def _on_all(context: CommandContext, verb: Verb, wanted: JobFilter, *, yes: bool, json: bool) -> Done:
    """Count the jobs that match, ask, and act on them."""
    jobs = choosing.count(context, wanted)
    if not jobs:
        return Done(json)
    choosing.confirm(f"{verb} {choosing.counted(jobs)}", yes=yes)
    total = jobs if jobs <= store.MOST_COUNTED else None
    portions = (found.ids for found in choosing.matching(context, wanted, limit=PORTION))
    return choosing.act(context, verb, portions, what=wanted, total=total, json=json)


def _report(verb: Verb, done: Done, *, json: bool) -> None:
    """Print what was done. Exit code 1 if there were jobs and none was changed, 130 after Ctrl-C."""
    if json:
        screen.print_json([msgspec.structs.asdict(change) for change in done.changes])
    else:
        _tell(_PAST[verb], done)
    if done.interrupted:
        screen.complain(f"stopped by Ctrl-C: {done.changed:,} {_PAST[verb]}; the other jobs are as they were")
        raise typer.Exit(130)
    if done.jobs and not done.changed:
        raise typer.Exit(1)


def _tell(past: str, done: Done) -> None:
    if not done.jobs:
        screen.say(screen.styled("no job matches: nothing was changed", style="dim"))
    elif done.stopping:
        screen.say(f"{done.changed - done.stopping:,} {past}, {done.stopping:,} asked to stop")
    elif done.changed:
        screen.say(f"{done.changed:,} {past}")
    for change in done.unchanged:
        line = screen.styled("not changed: ", style="yellow")
        note = change.note or ""  # One with a hint names the state in its own words.
        told = f"{change.id}: {note}" if ": " in note else f"{change.id} is {change.state}: {note}"
        screen.say(line.append(screen.plain(told), style="default"))
    if (more := done.jobs - done.changed - len(done.unchanged)) > 0:
        screen.say(screen.styled(f"not changed: {more:,} more", style="yellow"))


@command(app, panel=ACT)
def prune(
    context: CommandContext,
    filter: Filter,
    ids: Ids = None,
    older_than: OlderThan = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete jobs: those past their retention, those given by id, or all in --state (and --older-than).

    Example: outlive prune --state failed --older-than 30d
    """
    if ids and (filter or older_than):
        raise ConfigError("prune was given ids and a filter: give only one of them")
    if ids:
        done = _on_ids(context, "prune", ids, json=json)
    elif filter.state:
        older_s = validation.optional(validation.seconds)("--older-than", older_than)
        wanted = _with_states("prune", filter.resolved(context, older_s=older_s), ())
        done = _on_all(context, "prune", wanted, yes=yes, json=json)
    elif filter or older_than:
        raise ConfigError("prune with a filter needs --state: say which jobs to delete")
    else:
        pruned = _prune_old(context)
        done = Done(json, jobs=pruned, changed=pruned)
    if json and not done.interrupted:
        screen.print_json({"pruned": done.changed})
    else:
        _report("prune", done, json=False)


def _prune_old(context: CommandContext) -> int:
    """Delete the jobs that are past the retention of their task or its app, in batches. The configuration here applies
    to tasks that no worker has registered."""
    keep_s = context.config.keep_s
    pruned = 0
    with choosing.progress("pruned", None) as advance:
        for state in keep_s:
            more, mark = True, None
            while more:
                gone, more, mark = context.run(store.prune_finished(state, keep_s=keep_s[state], after=mark))
                pruned += gone
                advance(gone)
        more = True
        while more:
            gone, more = context.run(store.prune_expired())
            more = more and gone > 0  # Rows that another transaction has locked are left for the next run.
            pruned += gone
            advance(gone)
    context.run(store.prune_batches(keep_s=max(keep_s.values())))
    context.run(store.prune_workers(keep_s=config.KEEP_WORKERS_S))
    context.run(store.prune_audit())
    return pruned
