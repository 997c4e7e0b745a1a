"""statements/keys.sql: limits by key."""

from __future__ import annotations

from outlive.statement import Statement
from outlive.store.statements import nothing, scalar, statement


def admit_due(batch: int = 500) -> Statement[int]:
    """Admit the jobs whose time has come, as far as their keys have free slots.

    Returns how many jobs and keys that concerns. If it is less than `batch`, no more is due.
    """
    return statement("admit_due", scalar, batch=batch)


def requeue_missed() -> Statement[None]:
    """Jobs that another transaction moved as their queue was paused give back their slots; as it was resumed: queue."""
    return statement("requeue_missed", nothing)
