"""statements/jobs.sql: what clients and operators do with jobs and queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from msgspec.structs import asdict

from outlive.model import Change, JobRequest
from outlive.statement import Row, Statement
from outlive.states import State
from outlive.store.statements import statement

PLAIN_BYTES = 8192
"""How large arguments may be whose fingerprint is computed when it is needed."""


def enqueue(jobs: Sequence[JobRequest], *, max_args_bytes: int, notify: bool = False) -> Statement[dict[UUID, UUID]]:
    """Make jobs. Returns those that were not made, each with the unfinished job that holds its dedupe key."""
    if len(jobs) == 1 and not jobs[0].links:
        return _enqueue_one(jobs[0], max_args_bytes=max_args_bytes, notify=notify)
    columns = {name: list(map(attrgetter(name), jobs)) for name in JobRequest.__struct_fields__}
    columns["on_conflict"] = [job.on_conflict if job.dedupe_key is not None else None for job in jobs]
    for name in ("task", "queue", "source", "links"):
        if columns[name].count(columns[name][0]) == len(jobs):
            del columns[name][1:]  # The same for all jobs.
    return statement("enqueue", dict, **columns, max_args_bytes=max_args_bytes, notify=notify)


def _enqueue_one(job: JobRequest, *, max_args_bytes: int, notify: bool) -> Statement[dict[UUID, UUID]]:
    special = notify or (job.dedupe_key, job.options, job.delay_s, job.run_at) != (None, None, None, None)
    if not special and len(job.args) <= PLAIN_BYTES:
        return statement("enqueue_plain", _all_made, **asdict(job))

    def decode(rows: list[Row]) -> dict[UUID, UUID]:
        return {} if rows[0][0] == job.id else {job.id: rows[0][0]}

    return statement("enqueue_one", decode, **asdict(job), max_args_bytes=max_args_bytes, notify=notify)


def _all_made(_: list[Row]) -> dict[UUID, UUID]:
    return {}


def cancel(ids: Iterable[UUID]) -> Statement[list[Change]]: ...
def retry(ids: Iterable[UUID]) -> Statement[list[Change]]: ...
def repeat(ids: Iterable[UUID]) -> Statement[list[Change]]: ...
def release(ids: Iterable[UUID]) -> Statement[list[Change]]: ...
def block(ids: Iterable[UUID], reason: str) -> Statement[list[Change]]: ...
def prune_jobs(ids: Iterable[UUID]) -> Statement[int]: ...
def pause_queue(name: str) -> Statement[None]: ...
def resume_queue(name: str) -> Statement[bool]: ...


def prune_finished(
    state: State, *, keep_s: float, after: datetime | None = None, batch: int = 5000
) -> Statement[tuple[int, bool, datetime | None]]:
    """Delete old jobs of a finished state. `keep_s` is for tasks that no worker has registered.

    Returns how many, whether there may be more, and the end of the last job that it has seen, after which the next call
    begins.
    """

    def decode(rows: list[Row]) -> tuple[int, bool, datetime | None]:
        gone, seen, ended_at = rows[0]
        return gone or 0, seen >= batch, ended_at or after

    return statement("prune_finished", decode, state=str(state), keep_s=keep_s, after=after, batch=batch)
