"""How attempts end: by their child's answer, or by its death."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from uuid import UUID

from outlive.model import Ended
from outlive.protocol import Done, Exited
from outlive.states import Outcome
from outlive.worker import memory_limits
from outlive.worker.children import Assignment, Child
from outlive.worker.deferred_ends import DeferredEnds
from outlive.worker.oom import Verdict

MAX_UNPROVEN = 10
"""How often in a row the process of a job may die without proof against the job, before the job is blamed."""
UNPROVEN_KEPT = 10_000
LONGEST_PAUSE_S = 60.0
MAX_ZYGOTES = 10
ZYGOTES_S = 120.0
"""A job that sees so many zygotes die within this time is given up: it may be what kills them."""
NOT_IMPORTED_S = 5.0
MAX_LINE_CHARS = 300
MOST_LATE_S = 60.0
TELL_AGAIN_S = 60.0

_log = logging.getLogger("outlive.worker")


def answered(
    child: Child, assignment: Assignment, done: Done, took_s: float, deferred: DeferredEnds, *, stopping: bool
) -> tuple[Ended, bool]:
    """The end of an answered attempt, and whether a stop that this worker did not request may have caused it."""
    if done.marked:  # Otherwise its output was read before.
        child.read_output(assignment.job)
    output = None if child.said is None else child.take_output(assignment.job, marked=done.marked)
    peak_bytes = max(done.peak_memory_bytes or 0, assignment.peak_bytes) or None
    # A signal to stop makes faulthandler write a stack, which must not become the next job's.
    stack = child.take_stack() if assignment.verdict is not None or done.stopped_by else None
    outcome, error, killed_by, stopped = done.outcome, done.error, None, False
    if outcome is Outcome.SUCCEEDED and assignment.verdict is None:
        success = Ended(
            token=done.token,
            peak_memory_bytes=peak_bytes,
            cpu_s=done.cpu_s,
            output=output,
            result=done.result,
            source_ok=done.source_ok,
            records=done.records,
            spawns=done.spawns,
            took_s=took_s,
            late_s=_late_s(done),
            memory=None if assignment.series is None else assignment.memory(outcome, took_s),
        )
        return success, False
    if assignment.verdict is not None:
        outcome, error = assignment.verdict
        killed_by = "SIGKILL" if outcome is Outcome.OUT_OF_MEMORY else None
    elif outcome is Outcome.RELEASED and done.after_s is None and not stopping:
        # A signal from elsewhere counts as a kill, unless the whole worker stops: the job would return forever.
        killed_by = "SIGINT" if done.stopped_by == signal.SIGINT else "SIGTERM"
        outcome, stopped, error = Outcome.CRASHED, True, f"the process got a {killed_by} that its worker did not send"
    elif outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY):
        stopped = bool(done.stopped_by) or (done.process_ended and deferred.may_be_stopped())
    end = Ended(
        token=done.token,
        outcome=outcome,
        error=error,
        exit_code=1 if outcome is Outcome.FAILED else None,
        signal=killed_by,
        killed=assignment.verdict is not None,
        peak_memory_bytes=peak_bytes,
        cpu_s=done.cpu_s,
        output=output,
        stack=done.stack or (stack if assignment.verdict is not None else None),
        final=done.final,
        after_s=done.after_s if assignment.verdict is None else assignment.again_s,
        source_ok=False if outcome is Outcome.TIMED_OUT else done.source_ok if assignment.verdict is None else None,
        took_s=took_s,
        late_s=_late_s(done),
        told=done.told,
        memory=assignment.memory(outcome, took_s),
    )
    return end, stopped


def _late_s(done: Done) -> float:
    """How long ago the attempt ended, as its child says, if that can be."""
    late_s = 0.0 if done.ended_at is None else time.time() - done.ended_at
    return late_s if 0 < late_s < MOST_LATE_S else 0.0


def unanswered(child: Child, begun: Assignment, exit: Exited) -> Ended:
    """The end of the job that a dead child had begun."""
    number = os.WTERMSIG(exit.status) if os.WIFSIGNALED(exit.status) else None
    code = os.WEXITSTATUS(exit.status) if os.WIFEXITED(exit.status) else None
    name = None if number is None else _signal_name(number)
    output = child.take_output(begun.job)
    if begun.verdict is not None:
        outcome, error = begun.verdict
    elif name is not None:
        outcome, error = Outcome.CRASHED, f"the process was killed by {name}"
    else:
        outcome, error = Outcome.CRASHED, f"the process exited with code {code} and no result"
    if outcome is Outcome.CRASHED and (last := last_line(output)):
        error = f"{error}: {last}"
    took_s = time.monotonic() - begun.started
    return Ended(
        token=begun.job.token,
        outcome=outcome,
        error=error,
        exit_code=code,
        signal=name or ("SIGKILL" if outcome is Outcome.OUT_OF_MEMORY else None),
        killed=True,
        peak_memory_bytes=max(memory_limits.peak_bytes(child, begun, exit.peak_memory_bytes), begun.peak_bytes),
        cpu_s=max(0.0, exit.cpu_s - child.cpu_s),
        output=output,
        stack=child.take_stack(),
        after_s=begun.again_s,
        source_ok=False if outcome is Outcome.TIMED_OUT else None,
        took_s=took_s,
        memory=begun.memory(outcome, took_s),
    )


def last_line(text: str | None) -> str:
    """The last line of an output or a traceback, which often names the cause."""
    lines = (line.strip() for line in reversed((text or "").splitlines()))
    return next((line[-MAX_LINE_CHARS:] for line in lines if line), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def divided(child: Child) -> tuple[Assignment | None, list[Assignment]]:
    """The unanswered jobs of a dead child: the one that it had begun, and the others."""
    back = child.take_back()
    if not child.given:
        return None, back
    begun, *others = child.given
    return begun, others + back


class NotImported:
    """New interpreters (`preload=False`) that died before they had imported the app: no job is to blame."""

    def __init__(self) -> None:
        self._told = ("", 0.0)

    def concerns(self, begun: Assignment) -> bool:
        judged = begun.verdict is not None and begun.verdict[0] is not Outcome.CRASHED
        return not begun.facts.preload and not begun.imported and not judged

    def end(self, child: Child, begun: Assignment, status: int) -> Ended:
        """Release the job for a few seconds. This is logged once a minute, not for each job."""
        output = child.take_output(begun.job)
        how = f"exit code {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"
        error = f"its interpreter ended ({how}) before the app was imported: {last_line(output)}"
        words, told_at = self._told
        if words != error or time.monotonic() - told_at > TELL_AGAIN_S:
            self._told = (error, time.monotonic())
            _log.error("jobs of %s wait, and are retried every %g s: %s", begun.job.task, NOT_IMPORTED_S, error)
        return Ended(begun.job.token, Outcome.RELEASED, error=error, output=output, after_s=NOT_IMPORTED_S)


class Unclean:
    """Children that exit because their last job has changed something in them (`recycle_after="clean"`)."""

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        """Tasks whose last job has done so: their jobs are not given ahead, as they would come back at once."""
        self._told: dict[str, float] = {}

    def concerns(self, child: Child, ended: Assignment, changed: str | None) -> bool:
        """Whether the child exits after this job. The log has the reason once a minute for each task."""
        task = ended.job.task
        if changed is None:
            if self.tasks:
                self.tasks.discard(task)
            return False
        child.retiring = True
        self.tasks.add(task)
        if (now := time.monotonic()) - self._told.get(task, -TELL_AGAIN_S) >= TELL_AGAIN_S:
            self._told[task] = now
            what = changed[:MAX_LINE_CHARS]
            _log.info("a child of %s is replaced, because its job %s has changed its %s", task, ended.job.id, what)
        return True


class Unproven:
    """How often in a row the process of a job has died without proof that the job is the cause.

    The child died before the job began: the job's size may kill it. The parent died: the kernel does not say who has
    killed it. The kernel killed the child for lack of memory that others used. Such an attempt is released, up to a
    limit: a job that kills its parent each time is caught too.
    """

    def __init__(self) -> None:
        self._times: dict[UUID, int] = {}

    def too_often(self, one: Assignment) -> bool:
        """Count one more death. True if the job is to be blamed for it."""
        return self._count(one) >= MAX_UNPROVEN

    def judge(self, one: Assignment, verdict: Verdict | None, blame: Outcome | None) -> Verdict | None:
        """Count a verdict that releases the job. After too many of them in a row, the outcome is `blame`."""
        if verdict is None or verdict[0] is not Outcome.RELEASED or blame is None:
            return verdict
        if (times := self._count(one)) >= MAX_UNPROVEN:
            return blame, f"{verdict[1]}, as at its last {times - 1} attempts"
        if blame is Outcome.OUT_OF_MEMORY:  # There may be enough of it later.
            one.again_s = min(LONGEST_PAUSE_S, 2.0**times)
        return verdict

    def _count(self, one: Assignment) -> int:
        times = self._times[one.job.id] = self._times.pop(one.job.id, 0) + 1
        if len(self._times) > UNPROVEN_KEPT:
            del self._times[next(iter(self._times))]
        return times

    def forget(self, one: Assignment) -> None:
        if self._times:
            self._times.pop(one.job.id, None)


class ZygoteDeaths:
    """The last deaths of zygotes, except for those that the kernel has killed for lack of memory."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=MAX_ZYGOTES)

    def note(self, now: float) -> float | None:
        """Since when so many have died that the jobs which saw them all are given up; None if there were fewer."""
        self._at.append(now)
        if len(self._at) < MAX_ZYGOTES or now - self._at[0] > ZYGOTES_S:
            return None
        return self._at[0]
