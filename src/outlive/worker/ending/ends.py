"""The end of an attempt that its child has answered. Without an answer: process_deaths.py."""

from __future__ import annotations

import logging
import signal
import time

from outlive.humanize import short_id
from outlive.model import Ended
from outlive.protocol import Done
from outlive.states import Outcome
from outlive.worker.ending.deferred_ends import DeferredEnds
from outlive.worker.processes.assignments import Assignment, Verdict
from outlive.worker.processes.children import Child
from outlive.worker.reporting import job_log

MAX_LINE_CHARS = 300
MOST_LATE_S = 60.0
LOG_AGAIN_S = 60.0
"""How often the same reason is logged at most."""

_log = logging.getLogger("outlive.worker")


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
        stack=done.stack or (stack if verdict is not None else None),
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
            why, job = "replacing a child of %s: job %s changed its %s", ended.job
            _log.info(why, task, short_id(job.id), changed[:MAX_LINE_CHARS], extra=job_log.fields(job))
        return True
