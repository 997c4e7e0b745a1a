"""statements/results.sql: clients that wait for results, and results that are kept no longer."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from outlive.statement import Statement
from outlive.store.statements import statement

KEEP_AWAITED_S = 3600.0
"""How long the wish to be notified is kept. A client that still waits renews it at half that time."""


def await_jobs(ids: Iterable[UUID], renew_s: float = KEEP_AWAITED_S / 2) -> Statement[None]: ...
def awaited_ends(ids: Iterable[UUID]) -> Statement[list[UUID]]: ...
def prune_awaited(keep_s: float = KEEP_AWAITED_S) -> Statement[None]: ...


def prune_expired(*, batch: int = 5000) -> Statement[tuple[int, bool]]:
    """Delete jobs that are older than their task keeps them. Returns how many, and whether there may be more."""
    return statement("prune_expired", lambda rows: (rows[0][0] or 0, rows[0][1] == batch), batch=batch)
