"""statements/finding.sql: the jobs that match a filter, a page at a time, and ids by their first digits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from outlive.errors import BadArguments
from outlive.statement import Row, Statement
from outlive.states import FINISHED, State
from outlive.store.statements import first_column, statement

LOOK = 20_000
"""How many jobs one statement looks at, at most: some 50 ms."""
TEXT_LOOK = 5_000
"""The same for a search by text, which reads arguments and errors."""
TEXT_REACH = 100_000
"""A search by text looks at this many of the newest jobs, and no further."""
MOST_COUNTED = 10_000
"""Beyond this, people only want to know that there are more."""
LONGEST_TEXT = 200

_FIRST_ID = UUID(int=2**128 - 1)
_FIRST_AT = datetime(9999, 1, 1, tzinfo=UTC)
_CENTURY_S = 100 * 365 * 86400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Place = Literal["jobs", "batch", "unfinished", "finished"]


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
    """Jobs that ended within this time, and unfinished ones that were created within it."""
    older_s: float | None = None
    """Jobs that have been in their state for this long."""
    text: str | None = None
    """Anything in the task, the arguments or an error, whatever its case; of the newest 100,000 jobs."""


class Found(msgspec.Struct, frozen=True):
    """A page of jobs. `next` is where the next page begins; None: this is the last one.

    A page may have fewer jobs than were asked for, or none, and yet be followed by another: a statement looks at a
    bounded number of jobs. `seen` is how many all pages up to this one have looked at.
    """

    ids: list[UUID]
    count: int
    seen: int
    next: str | None
    cut: bool = False
    """There may be older jobs, which a search by text does not look at."""


def find_jobs(
    wanted: JobFilter, *, past: str | None = None, limit: int, counting: bool = False, look: int | None = None
) -> Statement[Found]:
    """A page of the jobs that match, the newest first. `past` is the `next` of the page before.

    Jobs of given states, or of a time, come in two parts: the unfinished ones, the latest created first, then the
    finished ones, the latest ended first. `counting`: only how many there are.
    """
    states = wanted.states or (tuple(State) if _by_time(wanted) and wanted.batch is None else ())
    place, past_at, past_id, seen = _read(past) if past else _start(wanted, states)
    asked = _in_place(place, states)
    look = look or _look(wanted, seen, limit)

    def decode(rows: list[Row]) -> Found:
        ids, count, more, at, id = rows[0]
        total = seen + more
        if wanted.text is not None and total >= TEXT_REACH:
            return Found(ids, count, total, None, cut=id is not None)
        if id is not None:
            return Found(ids, count, total, _written(place, at if place == "finished" else _FIRST_AT, id, total))
        if place == "unfinished" and _in_place("finished", states):
            return Found(ids, count, total, _written("finished", _FIRST_AT, _FIRST_ID, total))
        return Found(ids, count, total, None)

    return statement(
        "find_jobs",
        decode,
        place=place,
        past_at=past_at,
        past_id=past_id,
        look=look,
        limit=limit,
        counting=counting,
        states=[str(state) for state in asked] if asked or place in ("unfinished", "finished") else None,
        task=wanted.task,
        queue=wanted.queue,
        source=wanted.source,
        worker=wanted.worker,
        batch=wanted.batch,
        since_s=_bounded(wanted.since_s),
        older_s=_bounded(wanted.older_s),
        text=None if wanted.text is None else wanted.text[:LONGEST_TEXT],
    )


def _bounded(time_s: float | None) -> float | None:
    """Postgres has no time that is much longer ago."""
    return None if time_s is None else min(time_s, _CENTURY_S)


def _by_time(wanted: JobFilter) -> bool:
    return wanted.since_s is not None or wanted.older_s is not None


def _in_place(place: Place, states: tuple[State, ...]) -> tuple[State, ...]:
    match place:
        case "unfinished":
            return tuple(state for state in states if state not in FINISHED)
        case "finished":
            return tuple(state for state in states if state in FINISHED)
        case _:
            return states


def _start(wanted: JobFilter, states: tuple[State, ...]) -> tuple[Place, datetime, UUID, int]:
    if wanted.batch is not None:
        place: Place = "batch"
    elif not states:
        place = "jobs"
    else:
        place = "unfinished" if _in_place("unfinished", states) else "finished"
    return place, _FIRST_AT, _FIRST_ID, 0


def _look(wanted: JobFilter, seen: int, limit: int) -> int:
    """At first few jobs, which are enough where most of them match; then more and more."""
    most = LOOK if wanted.text is None else TEXT_LOOK
    return max(limit, min(most, max(limit + min(limit, 1000) + 100, 4 * seen)))


def _written(place: Place, at: datetime, id: UUID, seen: int) -> str:
    return f"{place}.{(at - _EPOCH) // timedelta(microseconds=1)}.{id.hex}.{seen}"


def _read(past: str) -> tuple[Place, datetime, UUID, int]:
    try:
        place, at, id, seen = past.split(".")
        if place not in ("jobs", "batch", "unfinished", "finished"):
            raise ValueError(place)
        return place, _EPOCH + timedelta(microseconds=int(at)), UUID(id), int(seen)  # type: ignore[return-value]
    except (ValueError, OverflowError):
        raise BadArguments("the position in the list of jobs is malformed: begin at the first page") from None


def with_prefix(kind: Literal["jobs", "batches"], digits: str, *, limit: int = 4) -> Statement[list[UUID]]:
    """The first ids that begin with these hexadecimal digits."""
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    name = "jobs_with_prefix" if kind == "jobs" else "batches_with_prefix"
    return statement(name, first_column, low=low, high=high, limit=limit)
