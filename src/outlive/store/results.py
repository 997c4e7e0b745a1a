"""statements/results.sql: clients that wait for results, and results that are kept no longer."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from outlive.statement import Statement
from outlive.store.statements import first_column, how_many, nothing, statement

KEEP_AWAITED_S = 3600.0
"""How long the wish to be notified is kept. A client that still waits renews it at half that time."""


def await_jobs(ids: Iterable[UUID]) -> Statement[None]:
    """Ask to be notified when these jobs end."""
    return statement("await_jobs", nothing, ids=ids, renew_s=KEEP_AWAITED_S / 2)


def awaited_ends(ids: Iterable[UUID]) -> Statement[list[UUID]]:
    """Those of these jobs that have ended or don't exist."""
    return statement("awaited_ends", first_column, ids=ids)


def prune_awaited() -> Statement[None]:
    return statement("prune_awaited", nothing, keep_s=KEEP_AWAITED_S)


def prune_expired(*, batch: int = 5000) -> Statement[tuple[int, bool]]:
    """Delete jobs that are older than their task keeps them. Returns how many, and whether there may be more."""
    return statement("prune_expired", how_many(batch), batch=batch)
