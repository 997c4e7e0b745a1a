"""The verbs on jobs: what they are called, which states they take, and how they are done to many jobs.

Jobs are taken in portions. Each portion is a transaction, which also writes the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from outlive import store
from outlive.errors import ConfigError
from outlive.humanize import counted
from outlive.model import Change
from outlive.operations import By, Steps
from outlive.states import State, legal
from outlive.store import Found, JobFilter

PORTION = 500
NAMED = 20
"""How many unchanged jobs are kept by id; the rest are counted."""


class Verb(msgspec.Struct, frozen=True):
    """`default` are the states that it takes of all jobs that match, if the filter names none."""

    name: store.Verb
    word: str
    past: str
    default: tuple[State, ...]
    note: str

    @property
    def takes(self) -> tuple[State, ...]:
        return tuple(state for state in State if legal(self.name, state))

    def asked(self, jobs: object) -> str:
        """Retry 3 jobs? Run 3 jobs again?"""
        verb, _, rest = self.word.partition(" ")
        return f"{verb} {jobs} {rest}".rstrip() + "?"

    def narrowed(self, wanted: JobFilter) -> JobFilter:
        """The filter, with the states that the verb takes."""
        states, takes = wanted.states or self.default, ", ".join(self.takes)
        if not states:
            raise ConfigError(f"{self.name} needs a state: choose one of {takes}")
        for state in states:
            if state not in self.takes:
                raise ConfigError(f"{self.name} does not apply to {state} jobs: use {takes}")
        return msgspec.structs.replace(wanted, states=states)


RETRY = Verb("retry", "Retry", "retried", (State.FAILED,), "A job runs again now, with all counters at zero.")
REPEAT = Verb(
    "repeat",
    "Run again",
    "enqueued again",
    (),
    "A new job with the same task, arguments, queue and priority runs now. The old one stays as it is.",
)
CANCEL = Verb(
    "cancel",
    "Cancel",
    "cancelled",
    tuple(state for state in State if legal("cancel", state)),
    "A job that is running is stopped by its worker.",
)
RELEASE = Verb(
    "release", "Release", "released", (State.QUARANTINED,), "A job runs again, with crashes and losses at zero."
)
PRUNE = Verb("prune", "Delete", "deleted", (), "The attempts, the result and the output of a job are deleted, too.")
VERBS: dict[str, Verb] = {verb.name: verb for verb in (RETRY, REPEAT, CANCEL, RELEASE, PRUNE)}


class Tally(msgspec.Struct):
    """What a verb has done so far. All changes are kept only if a program asks for them."""

    verb: Verb
    keeps_all: bool = False
    jobs: int = 0
    changed: int = 0
    stopping: int = 0
    interrupted: bool = False
    changes: list[Change] = []
    unchanged: list[Change] = []
    repeated: list[Change] = []
    """Those whose notes name new jobs."""

    def add(self, ids: Sequence[UUID], changes: Sequence[Change]) -> None:
        by_id = {change.id: change for change in changes}
        found = [by_id.get(id, Change(id, "unknown", False, "there is no such job")) for id in ids]
        self.jobs += len(found)
        self.changed += sum(one.changed for one in found)
        self.stopping += sum(one.changed and one.state == State.RUNNING for one in found)
        self.changes += found if self.keeps_all else []
        self.repeated += [one for one in found if one.changed and one.note][: NAMED - len(self.repeated)]
        self.unchanged += [one for one in found if not one.changed][: NAMED - len(self.unchanged)]

    def __str__(self) -> str:
        done = f"{counted(self.changed - self.stopping, 'job')} {self.verb.past}"
        return f"{done}, {self.stopping:,} asked to stop" if self.stopping else done


def act(
    tally: Tally, chosen: JobFilter | Sequence[UUID], by: By, *, stop: Callable[[int], bool] = lambda _: False
) -> Steps[None]:
    """Do what the tally counts. `stop` is called with the size of each portion, and may end the work."""
    what = chosen if isinstance(chosen, JobFilter) else None
    past: str | None = None
    while True:
        # The oldest first if they are retried: a job that another one waits for has mostly ended before that one.
        ids, past = yield from _portion(chosen, past, oldest=tally.verb is RETRY)
        if ids:
            tally.add(ids, (yield store.act(tally.verb.name, ids, who=by.who, what=what, entry=by.entry)))
        tally.interrupted = stop(len(ids))
        if past is None or tally.interrupted:
            return


def _portion(
    chosen: JobFilter | Sequence[UUID], past: str | None, *, oldest: bool
) -> Steps[tuple[list[UUID], str | None]]:
    """The next jobs, and where those after them begin."""
    if isinstance(chosen, JobFilter):
        found: Found = yield store.find_jobs(chosen, past=past, limit=PORTION, oldest=oldest)
        return found.ids, found.next
    begin = int(past or 0)
    end = begin + PORTION
    return list(chosen[begin:end]), str(end) if end < len(chosen) else None
