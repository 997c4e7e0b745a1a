"""statements/reads.sql: what clients and people look at. Nothing here changes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from outlive import wire
from outlive.model import Attempt, JobOutcome, MemoryCourse, Record
from outlive.statement import Row, Statement
from outlive.states import Outcome, State
from outlive.store.statements import Table, as_they_are, first_column, nothing, pairs, scalar, statement, table


def statuses(ids: Sequence[UUID]) -> Statement[dict[UUID, State]]:
    """The state of each job that exists."""
    return statement("statuses", lambda rows: {row[0]: State(row[1]) for row in rows}, ids=ids)


def outcomes(ids: Sequence[UUID]) -> Statement[dict[UUID, JobOutcome]]:
    """The state of each job that exists, and its last attempt."""

    def decode(rows: list[Row]) -> dict[UUID, JobOutcome]:
        return {
            id: JobOutcome(task, State(state), None if attempt[0] is None else _attempt(attempt))
            for id, task, state, *attempt in rows
        }

    return statement("outcomes", decode, ids=ids)


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


def job(id: UUID) -> Statement[Table]:
    return statement("job", table, id=id)


def list_attempts(job: UUID) -> Statement[list[Attempt]]:
    return statement("list_attempts", lambda rows: [_attempt(row) for row in rows], id=job)


def list_jobs(ids: Sequence[UUID]) -> Statement[Table]:
    """What people want to know of these jobs, in this order."""
    return statement("list_jobs", table, ids=ids)


def list_stuck(*, limit: int = 100) -> Statement[Table]:
    return statement("list_stuck", table, limit=limit)


def list_killers(*, limit: int = 100) -> Statement[Table]:
    return statement("list_killers", table, limit=limit)


def group_killers(*, limit: int = 200) -> Statement[Table]:
    return statement("group_killers", table, limit=limit)


def list_running(*, limit: int = 500) -> Statement[Table]:
    return statement("list_running", table, limit=limit)


def list_workers(*, limit: int = 1000) -> Statement[Table]:
    return statement("list_workers", table, limit=limit)


def list_queues() -> Statement[Table]:
    return statement("list_queues", table)


def list_sources(*, limit: int = 1000) -> Statement[Table]:
    return statement("list_sources", table, limit=limit)


def list_records(*, scope: str | None = None, source: str | None = None, limit: int) -> Statement[list[Record]]:
    def decode(rows: list[Row]) -> list[Record]:
        return [Record(*(*row[:3], wire.decode_or_text(row[3]), *row[4:])) for row in rows]

    return statement("list_records", decode, scope=scope, source=source, limit=limit)


def stats() -> Statement[Table]:
    return statement("stats", table)


def unserved_tasks(ids: Sequence[UUID]) -> Statement[list[str]]:
    """The tasks of those among these jobs that wait while no active worker can run them."""
    return statement("unserved_tasks", first_column, ids=ids)


def list_lanes(*, limit: int) -> Statement[Table]:
    return statement("list_lanes", table, limit=limit)


def unserved(lanes: Sequence[Mapping[str, Any]], workers: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """How many jobs are ready that no active worker can run, by task and queue."""
    active = [worker for worker in workers if worker["state"] == "active"]
    found: Counter[tuple[str, str]] = Counter()
    for lane in lanes:
        if lane["ready"] and not any(_serves(worker, lane) for worker in active):
            found[lane["task"], lane["queue"]] += lane["ready"]
    return found


def _serves(worker: Mapping[str, Any], lane: Mapping[str, Any]) -> bool:
    has_task = worker["tasks"] is None or lane["task"] in worker["tasks"]
    return has_task and (worker["queues"] is None or lane["queue"] in worker["queues"])


def rates() -> Statement[dict[str, float]]:
    """How many attempts ended per second lately, by the state that they gave their job."""
    return statement("rates", pairs)


def metrics() -> Statement[list[Row]]:
    """The figures of the whole database, each as the name of its metric, the value of its label, and the figure."""
    return statement("metrics", as_they_are)


def latencies() -> Statement[Table]:
    """How long attempts took lately, and how long jobs waited for the first one; null: none ended."""
    return statement("latencies", table)


def job_health() -> Statement[Table]:
    return statement("job_health", table)


def write_some() -> Statement[None]:
    return statement("write_some", nothing)


def health() -> Statement[Table]:
    return statement("health", table)


def clock() -> Statement[float]:
    return statement("clock", scalar)
