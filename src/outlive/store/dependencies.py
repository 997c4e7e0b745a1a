"""statements/dependencies.sql: jobs that wait for other jobs, and jobs that expire."""

from __future__ import annotations

from outlive.statement import Statement
from outlive.store.statements import scalar, statement


def check_late_ends(batch: int = 500) -> Statement[int]:
    """Release jobs that were enqueued to wait for others as these ended. Returns how many notes it has checked."""
    return statement("check_late_ends", scalar, batch=batch)


def follow_late_ends(batch: int = 500) -> Statement[int]:
    """Release some of the jobs that wait for jobs whose ends were left for later. Returns of how many ends."""
    return statement("follow_late_ends", scalar, batch=batch)


def cancel_expired(batch: int = 500) -> Statement[int]:
    """Cancel jobs that did not start in time. Returns how many notes about them it has looked at."""
    return statement("cancel_expired", scalar, batch=batch)
