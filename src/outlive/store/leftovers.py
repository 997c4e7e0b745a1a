"""statements/leftovers.sql: what transactions leave for later. Each verb returns how much it has dealt with."""

from __future__ import annotations

from outlive.statement import Statement


def admit_due(batch: int = 500) -> Statement[int]:
    """Admit the jobs whose time has come, as far as their keys have free slots.

    Returns how many jobs and keys that concerns. If it is less than `batch`, no more is due.
    """


def check_late_ends(batch: int = 500) -> Statement[int]:
    """Release jobs that were enqueued to wait for others as these ended. Returns how many notes it has checked."""


def follow_late_ends(batch: int = 500) -> Statement[int]:
    """Release some of the jobs that wait for jobs whose ends were left for later. Returns of how many ends."""


def cancel_expired(batch: int = 500) -> Statement[int]:
    """Cancel jobs that did not start in time, or are past their deadline. Returns at how many notes it has looked."""


def requeue_missed() -> Statement[None]: ...
