"""statements/finding.sql: the jobs that match a filter, a page at a time, and ids by their first digits."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from outlive.errors import BadArguments
from outlive.statement import Row, Statement
from outlive.states import State
from outlive.store.statements import Table, decoded_by, first_column, statement, table

LOOK = 2_000
"""How many jobs one statement looks at, at most, where no index has all parts of the filter: some 20 ms."""
LONGEST_TEXT = 200

_CENTURY_S = 100 * 365 * 86400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACES = ("ids", "batch", "worker", "lanes")


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which jobs. What is not given takes every job."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    source: str | None = None
    worker: str | None = None
    """The name or id of a worker that runs the job, or has run it."""
    batch: UUID | None = None
    since_s: float | None = None
    """Jobs that came into their state within this time: that ended, began, were held or became ready."""
    older_s: float | None = None
    """Jobs that have been in their state for this long."""
    since: datetime | None = None
    """Jobs that came into their state at this moment or later."""
    before: datetime | None = None
    """Jobs that came into their state before this moment."""
    text: str | None = None
    """Anything in the task, the arguments or an error, whatever its case. No index has it: each job is looked at."""

    @property
    def by_lane(self) -> bool:
        """Whether it has no other parts than states, task, queue and source, by which all jobs are counted."""
        return self.indexed and not self.by_time

    @property
    def by_time(self) -> bool:
        return any(one is not None for one in (self.since_s, self.older_s, self.since, self.before))

    @property
    def indexed(self) -> bool:
        """Whether an index has all parts of the filter, so that no job is looked at in vain."""
        return self.text is None and self.batch is None and self.worker is None


def times(since: datetime | float | None, before: datetime | float | None) -> dict[str, Any]:
    """The parts of a filter by time: moments, or how many seconds ago they were."""
    return {
        "since" if isinstance(since, datetime) else "since_s": since,
        "before" if isinstance(before, datetime) else "older_s": before,
    }


class Found(msgspec.Struct, frozen=True):
    """A page of jobs. `next` is where the next page begins; None: this is the last one.

    Where the filter is not indexed, a page may have fewer jobs than were asked for, or none, and yet be followed by
    another: a statement looks at a bounded number of jobs. `seen` is how many all pages up to this one have looked at,
    and `looked` how many of them this one has.
    """

    ids: list[UUID]
    count: int
    seen: int
    next: str | None
    looked: int = 0


def find_jobs(
    wanted: JobFilter,
    *,
    past: str | None = None,
    limit: int,
    oldest: bool = False,
    counting: bool = False,
    look: int | None = None,
) -> Statement[Found]:
    """A page of the jobs that match, the newest first, or the oldest. `past` is the `next` of the page before.

    All jobs, and those of a batch, are in the order in which they were created; others are in the order of the time at
    which they came into their state. `counting`: only how many there are.
    """
    place, past_at, past_id, seen = _read(past) if past else (_start(wanted), None, None, 0)

    def decode(rows: list[Row]) -> Found:
        place, ids, count, more, at, id = rows[0]
        total = seen + more
        return Found(ids, count, total, None if id is None else _written(place, at or _EPOCH, id, total), more)

    return statement(
        "find_jobs",
        decode,
        place=place,
        past_at=past_at,
        past_id=past_id,
        oldest=oldest,
        look=look or _look(wanted, seen, limit, counting=counting),
        limit=limit,
        counting=counting,
        states=[str(state) for state in wanted.states] or None,
        task=wanted.task,
        queue=wanted.queue,
        source=wanted.source,
        worker=wanted.worker,
        batch=wanted.batch,
        since_s=_bounded(wanted.since_s),
        older_s=_bounded(wanted.older_s),
        since=wanted.since,
        before=wanted.before,
        text=None if wanted.text is None else wanted.text[:LONGEST_TEXT],
    )


def find_page(
    wanted: JobFilter, *, limit: int, past: str | None = None, oldest: bool = False, patience_s: float = math.inf
) -> Generator[Statement[Found], Found, Found]:
    """The next jobs that match. Where no index has all of them, these are what is found when the patience ends."""
    ids: list[UUID] = []
    looked, began = 0, time.monotonic()
    while True:
        found = yield find_jobs(wanted, past=past, limit=limit - len(ids), oldest=oldest)
        ids += found.ids
        past, looked = found.next, looked + found.looked
        if past is None or len(ids) >= limit or time.monotonic() - began > patience_s:
            return Found(ids, len(ids), found.seen, past, looked)


def _bounded(time_s: float | None) -> float | None:
    """Postgres has no time that is much longer ago."""
    return None if time_s is None else min(time_s, _CENTURY_S)


def _start(wanted: JobFilter) -> str:
    if wanted.batch is not None:
        return "batch"
    if wanted.worker is not None:
        return "worker"
    return "ids" if wanted in (JobFilter(), JobFilter(text=wanted.text)) else "lanes"


def _look(wanted: JobFilter, seen: int, limit: int, *, counting: bool) -> int:
    """One more than is wanted shows whether there are more. Where many may not match: at first few, then more."""
    if wanted.indexed and not counting:
        return limit + 1
    return min(LOOK, max(1000, 4 * seen))


def _written(place: str, at: datetime, id: UUID, seen: int) -> str:
    return f"{place}.{(at - _EPOCH) // timedelta(microseconds=1)}.{id.hex}.{seen}"


def _read(past: str) -> tuple[str, datetime, UUID, int]:
    try:
        place, at, id, seen = past.split(".")
        if place not in _PLACES:
            raise ValueError(place)
        return place, _EPOCH + timedelta(microseconds=int(at)), UUID(id), int(seen)
    except (ValueError, OverflowError):
        raise BadArguments("the position in the list of jobs is malformed: begin at the first page") from None


@decoded_by(first_column)
def longest_jobs(ids: Sequence[UUID], *, limit: int) -> Statement[list[UUID]]: ...
@decoded_by(table)
def group_errors(ids: Sequence[UUID], *, limit: int) -> Statement[Table]: ...


def with_prefix(kind: Literal["jobs", "batches"], digits: str, *, limit: int = 4) -> Statement[list[UUID]]:
    """The first ids that begin with these hexadecimal digits."""
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    name = "jobs_with_prefix" if kind == "jobs" else "batches_with_prefix"
    return statement(name, first_column, low=low, high=high, limit=limit)
