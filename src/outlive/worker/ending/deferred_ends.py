"""Deferred ends: attempts that ended by SIGTERM, perhaps because the whole service stops.

systemd, for example, sends SIGTERM to every process of a unit, and it may reach a job, or a process that the job has
started and fails without, before the supervisor. Such an end waits for a second. If the worker is told to stop within
that time, the attempt is released; otherwise it counts.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from outlive.model import Claimed, Ended
from outlive.states import Outcome
from outlive.worker.limits import running_time

if TYPE_CHECKING:
    from outlive.worker.attempt_events import AttemptEvents

DEFER_S = 1.0
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FATAL = "Fatal Python error"
"""A stack that faulthandler writes on a crash begins with these words; one that it writes on SIGTERM does not."""


class Deferred(NamedTuple):
    since: float
    until: float
    """By running time: the signal to stop may arrive late in a process that stood still."""
    job: Claimed
    end: Ended
    completing: bool


class DeferredEnds:
    def __init__(self, report: AttemptEvents) -> None:
        self._report = report
        self.waiting: list[Deferred] = []
        self._stopped_at: float | None = None

    @property
    def stopping(self) -> bool:
        """Whether this worker was told to stop."""
        return self._stopped_at is not None

    def may_be_stopped(self) -> bool:
        """True until a second after this worker was told to stop: a stop of the whole service may be the cause."""
        return self._stopped_at is None or time.monotonic() < self._stopped_at + DEFER_S

    def add(self, job: Claimed, end: Ended, *, completing: bool) -> None:
        self.waiting.append(Deferred(time.monotonic(), running_time.now() + DEFER_S, job, end, completing))
        if self.stopping:
            self.release()

    def report_due(self, now: float) -> None:
        """Report the ends whose time is over: the worker was not told to stop."""
        due = [one for one in self.waiting if now > one.until]
        self.waiting = [one for one in self.waiting if now <= one.until]
        for one in due:
            self._report.ended(one.job, _late(one), completing=one.completing)

    def release(self) -> None:
        """The worker was told to stop: no attempt is charged."""
        self._stopped_at = self._stopped_at or time.monotonic()
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            self._report.ended(one.job, _released(_late(one)), completing=one.completing)


def _late(one: Deferred) -> Ended:
    """Its end, which has waited here."""
    return msgspec.structs.replace(one.end, late_s=one.end.late_s + time.monotonic() - one.since)


def _released(end: Ended) -> Ended:
    """The same end as a release, with its evidence."""
    error = f"its worker was told to stop ({end.error})"
    return msgspec.structs.replace(
        end, outcome=Outcome.RELEASED, error=error, final=False, after_s=None, source_ok=None
    )


def looks_stopped(status: int, stack: str | None) -> bool:
    """Whether a process that ended like this received a signal to stop."""
    if os.waitstatus_to_exitcode(status) in (*(-one for one in STOPS), *(128 + one for one in STOPS)):
        return True
    return stack is not None and not stack.startswith(FATAL)
