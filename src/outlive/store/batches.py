"""statements/batches.sql: how batches are opened, closed and cancelled, and what people read of them."""

from __future__ import annotations

from uuid import UUID

from outlive.model import BatchCounts, JobRequest, as_json
from outlive.statement import Statement
from outlive.store.statements import Table, decoded_by, first_column, nothing, scalar, statement, table


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


@decoded_by(nothing)
def close_batch(id: UUID, *, cancelling: bool = False) -> Statement[None]: ...
@decoded_by(scalar)
def cancel_batch(id: UUID, past: UUID | None = None, *, most: int = 500) -> Statement[UUID | None]:
    """Cancel the unfinished among the next jobs after `past`. Returns the last of these; None: no more follow."""


@decoded_by(lambda rows: BatchCounts(*rows[0]) if rows else None)
def batch_counts(id: UUID) -> Statement[BatchCounts | None]: ...
@decoded_by(lambda rows: rows[0][0] if rows else None)
def batch_done(id: UUID) -> Statement[bool | None]: ...
@decoded_by(table)
def batch(id: UUID) -> Statement[Table]: ...
@decoded_by(table)
def list_batches(*, limit: int = 100) -> Statement[Table]: ...
@decoded_by(first_column)
def batch_of(token: int) -> Statement[list[UUID | None]]: ...
@decoded_by(nothing)
def prune_batches(*, keep_s: float, batch: int = 5000) -> Statement[None]: ...
