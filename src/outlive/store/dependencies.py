"""statements/dependencies.sql: jobs that wait for other jobs."""

from __future__ import annotations

from outlive.statement import Statement
from outlive.store.building import scalar, statement


def check_late_ends(batch: int = 100) -> Statement[int]:
    """Release what waits for jobs whose ends were written with an old snapshot. Returns how many it has checked."""
    return statement("check_late_ends", scalar, batch=batch)
