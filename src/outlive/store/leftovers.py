"""statements/leftovers.sql: what transactions leave for later. Each verb returns how much it has dealt with."""

from __future__ import annotations

from outlive.statement import Statement
from outlive.store.statements import decoded_by, nothing, scalar


@decoded_by(scalar)
def admit_due(batch: int = 500) -> Statement[int]:
    """Admit the jobs whose time has come, as far as their keys have free slots.

    Returns how many jobs and keys that concerns. If it is less than `batch`, no more is due.
    """


@decoded_by(scalar)
def check_late_ends(batch: int = 500) -> Statement[int]:
    """Release jobs that were enqueued to wait for others as these ended. Returns how many notes it has checked."""


@decoded_by(scalar)
def follow_late_ends(batch: int = 500) -> Statement[int]:
    """Release some of the jobs that wait for jobs whose ends were left for later. Returns of how many ends."""


@decoded_by(scalar)
def cancel_expired(batch: int = 500) -> Statement[int]:
    """Cancel jobs that did not start in time, or are past their deadline. Returns at how many notes it has looked."""


@decoded_by(nothing)
def requeue_missed() -> Statement[None]: ...
