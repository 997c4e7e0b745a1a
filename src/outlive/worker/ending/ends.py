"""The end of an attempt that its child has answered, and ends that wait. Without an answer: process_deaths.py."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from outlive.model import Claimed, Ended
from outlive.protocol import Done
from outlive.states import Outcome
from outlive.worker.limits import running_time
from outlive.worker.processes.assignments import Assignment, Verdict
from outlive.worker.processes.children import Child
from outlive.worker.reporting import job_log

if TYPE_CHECKING:
    from outlive.worker.services import Services

DEFER_S = 1.0
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FATAL = "Fatal Python error"
"""A stack that faulthandler writes on a crash begins with these words; one that it writes on SIGTERM does not."""
MAX_LINE_CHARS = 300
MOST_LATE_S = 60.0
LOG_AGAIN_S = 60.0
"""How often the same reason is logged at most."""


def answered(
    child: Child, one: Assignment, done: Done, verdict: Verdict | None, took_s: float, deferred: DeferredEnds
) -> tuple[Ended, bool]:
    """The end of an answered attempt, and whether a stop that this worker did not request may have caused it."""
    if done.marked:  # Otherwise its output was read before.
        child.read_rest(one.job)
    if verdict is None and done.outcome is Outcome.SUCCEEDED:
        return _success(child, one, done, took_s), False
    outcome, error, after_s, source_ok = done.outcome, done.error, done.after_s, done.source_ok
    killed_by, stopped = None, False
    if verdict is not None:
        outcome, error, after_s = verdict
        killed_by = "SIGKILL" if outcome is Outcome.OUT_OF_MEMORY else None
        source_ok = False if outcome is Outcome.TIMED_OUT else None
    elif done.stopped and not deferred.stopping:
        # A signal from elsewhere counts as a kill, unless the whole worker stops: the job would return forever.
        killed_by = "SIGINT" if done.stopped_by == signal.SIGINT else "SIGTERM"
        outcome, stopped, error = Outcome.CRASHED, True, f"the process got a {killed_by} that its worker did not send"
    elif outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY):
        stopped = bool(done.stopped_by) or (done.process_ended and deferred.may_be_stopped())
    # A signal to stop makes faulthandler write a stack, which must not become the next job's.
    stack = child.stack_of_ended() if verdict is not None or done.stopped_by else None
    end = Ended(
        token=done.token,
        outcome=outcome,
        error=error,
        exit_code=1 if outcome is Outcome.FAILED else None,
        signal=killed_by,
        peak_memory_bytes=max(done.peak_memory_bytes or 0, one.peak_bytes) or None,
        cpu_s=done.cpu_s,
        output=child.output_of(one, marked=done.marked),
        stack=done.stack or one.stack or (stack if verdict is not None else None),
        killed=verdict is not None,
        final=done.final or one.is_final(outcome),
        after_s=after_s,
        source_ok=source_ok,
        took_s=took_s,
        late_s=_late_s(done),
        told=done.told,
        memory=one.memory(outcome, took_s),
        restart=done.restart if verdict is None else None,
    )
    return end, stopped


def _success(child: Child, one: Assignment, done: Done, took_s: float) -> Ended:
    if done.stopped_by:
        child.stack_of_ended()  # As above.
    return Ended(
        token=done.token,
        peak_memory_bytes=max(done.peak_memory_bytes or 0, one.peak_bytes) or None,
        cpu_s=done.cpu_s,
        output=child.output_of(one, marked=done.marked),
        result=done.result,
        source_ok=done.source_ok,
        records=done.records,
        spawns=done.spawns,
        took_s=took_s,
        late_s=_late_s(done),
        memory=one.memory(done.outcome, took_s),
    )


def _late_s(done: Done) -> float:
    """How long ago the attempt ended, by its child's clock, if that can be."""
    late_s = 0.0 if done.ended_at is None else time.time() - done.ended_at
    return late_s if 0 < late_s < MOST_LATE_S else 0.0


def last_line(text: str | None) -> str:
    """The last line of an output or a traceback, which often names the cause."""
    lines = (line.strip() for line in reversed((text or "").splitlines()))
    return next((line[-MAX_LINE_CHARS:] for line in lines if line), "")


class Unclean:
    """Children that exit because their last job has changed something in them (`recycle_after="clean"`)."""

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        """Tasks whose last job has done so: their jobs are not given ahead, as they would come back at once."""
        self._logged_at: dict[str, float] = {}

    def concerns(self, child: Child, ended: Assignment, changed: str | None) -> bool:
        """Whether the child exits after this job. The log has the reason once a minute for each task."""
        task = ended.job.task
        if changed is None:
            self.tasks.discard(task)
            return False
        child.retiring = True
        self.tasks.add(task)
        if (now := time.monotonic()) - self._logged_at.get(task, -LOG_AGAIN_S) >= LOG_AGAIN_S:
            self._logged_at[task] = now
            why = "replacing a child of %s: job %s changed its %s"
            job_log.note("INFO", why, task, ended.job, changed[:MAX_LINE_CHARS])
        return True


class Deferred(NamedTuple):
    since: float
    until: float
    """By running time: the signal to stop may arrive late in a process that stood still."""
    job: Claimed
    end: Ended
    completing: bool


class DeferredEnds:
    """Attempts that ended by SIGTERM, perhaps because the whole service stops.

    systemd, for example, sends SIGTERM to every process of a unit, and it may reach a job, or a process that the job
    has started and fails without, before the supervisor. Such an end waits for a second. If the worker is told to stop
    within that time, the attempt is released; otherwise it counts.
    """

    def __init__(self, report: Services) -> None:
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
            end = _late(one)
            error = f"its worker was told to stop ({end.error})"  # The rest of the evidence stays.
            end = msgspec.structs.replace(
                end, outcome=Outcome.RELEASED, error=error, final=False, after_s=None, source_ok=None
            )
            self._report.ended(one.job, end, completing=one.completing)


def _late(one: Deferred) -> Ended:
    """Its end, which has waited here."""
    return msgspec.structs.replace(one.end, late_s=one.end.late_s + time.monotonic() - one.since)


def looks_stopped(status: int, stack: str | None) -> bool:
    """Whether a process that ended like this received a signal to stop."""
    if os.waitstatus_to_exitcode(status) in (*(-one for one in STOPS), *(128 + one for one in STOPS)):
        return True
    return stack is not None and not stack.startswith(FATAL)
