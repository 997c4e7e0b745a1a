"""Ends that look like the stop of a whole service: SIGTERM may reach the jobs before it reaches the supervisor.

systemd, for one, sends it to every process of a unit. Such an end is kept for a second. If the worker is told to stop
within that time, the attempt is released; otherwise it ends as it looks.
"""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple, Protocol

import msgspec

from outlive.model import Claimed, Ended
from outlive.states import Outcome

KEEP_S = 1.0
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FATAL = "Fatal Python error"
"""How the stack begins that faulthandler writes on a crash; after SIGTERM it writes one without these words."""


class Report(Protocol):
    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None: ...


class Kept(NamedTuple):
    until: float
    job: Claimed
    end: Ended
    completing: bool


class Aside:
    def __init__(self, report: Report) -> None:
        self._report = report
        self.kept: list[Kept] = []

    def keep(self, job: Claimed, end: Ended, *, completing: bool) -> None:
        self.kept.append(Kept(time.monotonic() + KEEP_S, job, end, completing))

    def judge(self, now: float) -> None:
        """The worker was not told to stop: those whose time is over end as they look."""
        due = [one for one in self.kept if now > one.until]
        self.kept = [one for one in self.kept if now <= one.until]
        for one in due:
            self._report.ended(one.job, one.end, completing=one.completing)

    def release(self) -> None:
        """The worker was told to stop."""
        kept, self.kept = self.kept, []
        for one in kept:
            self._report.ended(one.job, released(one.end), completing=one.completing)


def released(end: Ended) -> Ended:
    """The same end at no cost, with its evidence."""
    error = f"its worker was told to stop ({end.error})"
    return msgspec.structs.replace(
        end, outcome=Outcome.RELEASED, error=error, final=False, after_s=None, source_ok=None
    )


def looks_stopped(status: int, stack: str | None) -> bool:
    """Whether a process that has ended like this got a signal that tells it to stop."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in STOPS:
        return True
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) - 128 in STOPS:
        return True
    return stack is not None and not stack.startswith(FATAL)
