"""statements/batches.sql: how batches are opened, closed and cancelled, and what people read of them."""

from __future__ import annotations

from uuid import UUID

from outlive.model import BatchCounts, JobRequest, as_json
from outlive.statement import Statement
from outlive.store.statements import Table, scalar, statement


def open_batch(
    id: UUID,
    name: str,
    *,
    on_success: JobRequest | None = None,
    on_failure: JobRequest | None = None,
    on_done: JobRequest | None = None,
) -> Statement[UUID]:
    callbacks = {"on_success": on_success, "on_failure": on_failure, "on_done": on_done}
    jobs = {key: job and as_json(job) for key, job in callbacks.items()}
    return statement("open_batch", scalar, id=id, name=name, **jobs)


def close_batch(id: UUID, *, cancelling: bool = False) -> Statement[None]: ...
def cancel_batch(id: UUID, past: UUID | None = None, *, most: int = 500) -> Statement[UUID | None]:
    """Cancel the unfinished among the next jobs after `past`. Returns the last of these; None: no more follow."""


def batch_counts(id: UUID) -> Statement[BatchCounts | None]: ...
def batch_done(id: UUID) -> Statement[bool | None]: ...
def batch(id: UUID) -> Statement[Table]: ...
def list_batches(*, limit: int = 100) -> Statement[Table]: ...
def batch_of(token: int) -> Statement[list[UUID | None]]: ...
def prune_batches(*, keep_s: float, batch: int = 5000) -> Statement[None]: ...
