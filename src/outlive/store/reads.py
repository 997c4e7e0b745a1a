"""statements/reads.sql: what clients and people look at. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from outlive import wire
from outlive.model import Attempt, JobOutcome, JobProgress, MemoryCourse, Record
from outlive.statement import Row, Statement
from outlive.states import Outcome, State
from outlive.store.statements import Table, decoded_by, nothing, scalar, table

MANY_UNMET = 1000


def _outcomes(rows: list[Row]) -> dict[UUID, JobOutcome]:
    return {
        id: JobOutcome(task, State(state), None if attempt[0] is None else _attempt(attempt))
        for id, task, state, *attempt in rows
    }


def _attempt(row: Sequence[Any]) -> Attempt:
    _, number, outcome, *evidence, result, memory = row
    stored = None if result is None else msgspec.Raw(result)
    return Attempt(*[number, Outcome(outcome), *evidence, stored, None if memory is None else course(memory)])


def course(memory: bytes) -> MemoryCourse | None:
    """None if it can't be read: another version may have written it, and the rest of the attempt matters more."""
    try:
        found = msgspec.json.decode(memory, type=MemoryCourse)
    except (msgspec.MsgspecError, RecursionError):
        return None
    fits = 0 < len(found.at_s) == len(found.used_bytes)
    return found if fits and min(*found.at_s, *found.used_bytes, found.limit_bytes or 0) >= 0 else None


def _records(rows: list[Row]) -> list[Record]:
    return [Record(*(*row[:3], wire.decode_or_text(row[3]), *row[4:])) for row in rows]


@decoded_by(lambda rows: {id: State(state) for id, state in rows})
def statuses(ids: Sequence[UUID]) -> Statement[dict[UUID, State]]: ...
@decoded_by(lambda rows: JobProgress(State(rows[0][0]), *rows[0][1:]) if rows else None)
def job_progress(id: UUID) -> Statement[JobProgress | None]: ...
@decoded_by(_outcomes)
def outcomes(ids: Sequence[UUID]) -> Statement[dict[UUID, JobOutcome]]: ...
@decoded_by(table)
def job(id: UUID) -> Statement[Table]: ...
@decoded_by(table)
def linked_jobs(id: UUID, *, limit: int) -> Statement[Table]: ...
@decoded_by(lambda rows: list(map(_attempt, rows)))
def list_attempts(id: UUID, most: int | None = None) -> Statement[list[Attempt]]: ...
@decoded_by(table)
def list_jobs(ids: Sequence[UUID], states: Sequence[State] = ()) -> Statement[Table]: ...
@decoded_by(table)
def list_stuck(*, limit: int = 100) -> Statement[Table]: ...
@decoded_by(scalar)
def count_stuck() -> Statement[int]: ...
@decoded_by(scalar)
def count_unmet() -> Statement[int]: ...
@decoded_by(table)
def list_killers(*, limit: int = 100) -> Statement[Table]: ...
@decoded_by(table)
def group_killers(*, limit: int = 200) -> Statement[Table]: ...
@decoded_by(table)
def list_running(*, limit: int = 500) -> Statement[Table]: ...
@decoded_by(table)
def list_workers(*, limit: int = 1000) -> Statement[Table]: ...
@decoded_by(table)
def list_queues() -> Statement[Table]: ...
@decoded_by(table)
def queues_with_rates() -> Statement[Table]: ...
@decoded_by(table)
def list_sources(*, begins: str = "", limit: int = 1000) -> Statement[Table]: ...
@decoded_by(_records)
def list_records(
    *,
    scope: str | None = None,
    source: str | None = None,
    key: str | None = None,
    after: Sequence[str] = ("", "", ""),
    limit: int,
) -> Statement[list[Record]]: ...
@decoded_by(table)
def count_jobs() -> Statement[Table]: ...
@decoded_by(list)
def unfinished(ids: Sequence[UUID]) -> Statement[list[Row]]: ...
@decoded_by(list)
def unserved_lanes() -> Statement[list[Row]]: ...
@decoded_by(table)
def list_tasks(*, limit: int = 1000) -> Statement[Table]: ...
@decoded_by(table)
def task(name: str) -> Statement[Table]: ...
@decoded_by(table)
def list_lanes(*, limit: int) -> Statement[Table]: ...
@decoded_by(dict)
def rates() -> Statement[dict[str, float]]: ...
@decoded_by(list)
def metrics() -> Statement[list[Row]]:
    """The figures of the whole database, each as the name of its metric, the value of its label, and the figure."""


@decoded_by(table)
def latencies() -> Statement[Table]: ...
@decoded_by(table)
def job_health() -> Statement[Table]: ...
@decoded_by(nothing)
def write_some() -> Statement[None]: ...
@decoded_by(table)
def health() -> Statement[Table]: ...
@decoded_by(table)
def lock_holders() -> Statement[Table]: ...
@decoded_by(scalar)
def clock() -> Statement[float]: ...
@decoded_by(scalar)
def schema_version(mine: int) -> Statement[int | None]: ...
