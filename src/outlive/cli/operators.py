"""The operator's commands on jobs: retry, cancel, release and prune.

Jobs are given by id, or chosen by a filter together with `--all`. `states.legal` says which states a command accepts.
"""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from outlive import config, store, validation
from outlive.cli import choosing, screen
from outlive.cli.choosing import Filter, Yes
from outlive.cli.command import ACT, CommandContext, Json, app, command, operator
from outlive.errors import ConfigError
from outlive.operations import selection, verbs
from outlive.operations.verbs import CANCEL, PRUNE, RELEASE, RETRY, Tally, Verb
from outlive.store import JobFilter

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The jobs; the first digits of an id are enough.")
]
All = Annotated[bool, typer.Option("--all", help="Every job that matches the filter; required if no id is given.")]
OlderThan = Annotated[str | None, typer.Option(help="Only jobs that have been in their state for this long, e.g. 30d.")]


def _add_command(verb: Verb, help: str) -> None:
    """A command that applies a verb to jobs."""

    def run(
        context: CommandContext, filter: Filter, ids: Ids = None, all: All = False, yes: Yes = False, json: Json = False
    ) -> None:
        if ids and (all or filter):
            raise ConfigError(f"{verb.name} was given ids and a filter: give only one of them")
        if ids:
            tally = _on_ids(context, verb, ids, json=json)
        elif all:
            tally = _on_all(context, verb, filter.resolved(context), yes=yes, json=json)
        else:
            raise ConfigError(
                f"{verb.name} needs ids, or --all for every job that matches --state, --task, --queue or another filter"
            )
        _report(tally, json=json)

    run.__doc__ = help
    command(app, verb.name, panel=ACT)(run)


_add_command(
    RETRY,
    """Run failed, cancelled or retryable jobs now, with all counters at zero. --all takes the failed ones.

    Example: outlive retry --all --task shop.fetch --since 2h""",
)
_add_command(
    CANCEL,
    """Cancel jobs. A running job is stopped by its worker.

    Example: outlive cancel --all --state pending --queue slow""",
)
_add_command(
    RELEASE,
    """Release quarantined or blocked jobs, with crashes and losses at zero. --all takes quarantined ones.

    Example: outlive release ID""",
)


def _on_ids(context: CommandContext, verb: Verb, given: Sequence[str], *, json: bool) -> Tally:
    ids = list(dict.fromkeys(choosing.found_id(context, "job", text) for text in given))
    return _act(context, verb, ids, total=len(ids), json=json)


def _on_all(context: CommandContext, verb: Verb, wanted: JobFilter, *, yes: bool, json: bool) -> Tally:
    """Count the jobs that match, ask, and act on them."""
    wanted = verb.narrowed(wanted)
    count = context.do(selection.count(wanted))
    if not count.jobs:
        return Tally(verb)
    choosing.confirm(f"{verb.name} {count}", yes=yes)
    return _act(context, verb, wanted, total=None if count.more else count.jobs, json=json)


def _act(
    context: CommandContext, verb: Verb, chosen: JobFilter | Sequence[UUID], *, total: int | None, json: bool
) -> Tally:
    """Apply a verb. Ctrl-C ends it after the portion that is under way."""
    tally = Tally(verb, keeps_all=json)
    with choosing.progress(verb.name, total) as advance, choosing.interruptible() as asked_to_stop:

        def stop(jobs: int) -> bool:
            advance(jobs)
            return asked_to_stop()

        context.do(verbs.act(tally, chosen, operator(), stop=stop))
    return tally


def _report(tally: Tally, *, json: bool) -> None:
    """Print what was done. Exit code 1 if there were jobs and none was changed, 130 after Ctrl-C."""
    if json:
        screen.print_json([msgspec.structs.asdict(change) for change in tally.changes])
    else:
        _tell(tally)
    if tally.interrupted:
        screen.complain(f"stopped by Ctrl-C: {tally}; the other jobs are as they were")
        raise typer.Exit(130)
    if tally.jobs and not tally.changed:
        raise typer.Exit(1)


def _tell(tally: Tally) -> None:
    if not tally.jobs:
        screen.say(screen.styled("no job matches: nothing was changed", style="dim"))
    elif tally.changed:
        screen.say(str(tally))
    for change in tally.unchanged:
        line = screen.styled("not changed: ", style="yellow")
        note = change.note or ""  # One with a hint names the state in its own words.
        told = f"{change.id}: {note}" if ": " in note else f"{change.id} is {change.state}: {note}"
        screen.say(line.append(screen.plain(told), style="default"))
    if (more := tally.jobs - tally.changed - len(tally.unchanged)) > 0:
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
        tally = _on_ids(context, PRUNE, ids, json=json)
    elif filter.state:
        older_s = validation.optional(validation.seconds)("--older-than", older_than)
        tally = _on_all(context, PRUNE, filter.resolved(context, older_s=older_s), yes=yes, json=json)
    elif filter or older_than:
        raise ConfigError("prune with a filter needs --state: say which jobs to delete")
    else:
        pruned = _prune_old(context)
        tally = Tally(PRUNE, jobs=pruned, changed=pruned)
    if json and not tally.interrupted:
        screen.print_json({"pruned": tally.changed})
    else:
        _report(tally, json=False)


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
