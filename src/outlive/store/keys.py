"""statements/keys.sql: limits by key."""

from __future__ import annotations

from outlive.statement import Statement
from outlive.store.building import scalar, statement


def admit_due(batch: int = 1000) -> Statement[int]:
    """Admit the jobs whose time has come, as far as their keys have free slots. Returns how many keys that concerns."""
    return statement("admit_due", scalar, batch=batch)
