"""statements/batches.sql: how batches are opened, closed and cancelled, and what people read of them."""

from __future__ import annotations

from uuid import UUID

from outlive.model import BatchCounts, JobRequest, as_json
from outlive.statement import Row, Statement
from outlive.store.statements import Table, first_column, nothing, scalar, statement, table

PIECE = 500
"""How many jobs of a batch are cancelled in one transaction."""


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


def close_batch(id: UUID, *, cancelling: bool = False) -> Statement[None]:
    return statement("close_batch", nothing, id=id, cancelling=cancelling)


def cancel_batch(id: UUID, past: UUID | None = None, *, most: int = PIECE) -> Statement[UUID | None]:
    """Cancel the unfinished among the next jobs after `past`. Returns the last of these; None: no more follow."""
    return statement("cancel_batch", scalar, id=id, past=past, most=most)


def batch_counts(id: UUID) -> Statement[BatchCounts | None]:
    """How far a batch is; None if there is no such batch."""

    def decode(rows: list[Row]) -> BatchCounts | None:
        return BatchCounts(*rows[0]) if rows else None

    return statement("batch_counts", decode, id=id)


def batch_done(id: UUID) -> Statement[bool | None]:
    """Whether all jobs of a batch have ended; None if there is no such batch."""
    return statement("batch_done", lambda rows: rows[0][0] if rows else None, id=id)


def batch(id: UUID) -> Statement[Table]:
    return statement("batch", table, id=id)


def list_batches(*, limit: int = 100) -> Statement[Table]:
    return statement("list_batches", table, limit=limit)


def batch_of(token: int) -> Statement[list[UUID | None]]:
    """The batch of a running job, or None in its place; empty: the attempt has ended."""
    return statement("batch_of", first_column, token=token)


def prune_batches(*, keep_s: float, batch: int = 5000) -> Statement[None]:
    return statement("prune_batches", nothing, keep_s=keep_s, batch=batch)
