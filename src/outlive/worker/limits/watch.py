"""The watch: it checks the time, progress, memory and leases of running jobs, and ends those that exceed a limit."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time

from outlive.humanize import short_id
from outlive.states import Outcome
from outlive.worker.limits import memory_limits, running_time
from outlive.worker.limits.sharing import SharedWatch, overdue
from outlive.worker.processes.assignments import LEASE_LOST, Assignment, Verdict
from outlive.worker.processes.children import KILL_AFTER_S, LEAVE_S, Child
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting import job_log

WATCH_S = 0.05
IDLE_S = 0.2
"""How often it looks while the worker has nothing to do. It must be less than GAP_S (running_time.py)."""
DUMP_S = 0.2
"""So long before SIGKILL a job that ignores SIGTERM, with which its stack is written, is asked for its stack."""
BEGIN_S = 2.0
"""A child that takes longer than this to begin its job is stuck."""

_log = logging.getLogger("outlive.worker")


class Watch:
    def __init__(self, slots: Slots) -> None:
        self._slots, self._leases = slots, slots.leases
        self._sharing = SharedWatch(slots)

    async def run_once(self) -> None:
        slots, zygotes = self._slots, self._slots.zygotes
        now, ran_until = time.monotonic(), running_time.tick()
        zygotes.sweep()
        zygotes.continue_stopped(now)
        zygotes.fork_ahead()
        slots.reader.resume()
        slots.look_for_trouble(now)
        slots.deferred.report_due(ran_until)
        slots.drop_unplaced(now)
        slots.deaths.oom_kills.forget_old(zygotes.groups)
        for child in slots.children:
            if child.pid and not child.given and not child.parked:
                self._judge_idle(child, ran_until)
        for child in slots.busy:
            if child.shared:
                self._sharing.judge(child, child.shared, now, ran_until)
                continue
            current = child.current
            ending = current.verdict is LEASE_LOST or child.distrusted
            if self._leases.expired(current.job.token, now) and not ending:
                self._kill_untrusted(child)
            elif current.verdict is not None:
                self._kill_overdue(child, current, ran_until)
            elif not child.has_begun():
                if ran_until - current.counted_from > BEGIN_S and not child.unsent:
                    slots.give_up_on(child)
            else:
                self._judge(child, current, ran_until)
                if len(child.given) > 1 and child.runs_over(now):
                    slots.relieve(child)
        # Last, so that running time counts from the start of the worker.
        await asyncio.sleep(WATCH_S if slots.busy or slots.unplaced or slots.deferred.waiting else IDLE_S)

    def _judge_idle(self, child: Child, now: float) -> None:
        """Kill a child that keeps too much memory between jobs, or that something keeps from exiting after its last."""
        facts = self._slots.tasks.get(child.task or "")
        if not child.retiring:
            if facts and facts.memory_bytes is not None:
                memory_limits.enforce_idle(child, facts.memory_bytes)
        elif child.leaving_since is None:
            child.leaving_since = now
        elif now - child.leaving_since > LEAVE_S:
            _log.warning("child %d still runs %g s after its last job: it is killed", child.pid, LEAVE_S)
            child.signal(signal.SIGKILL)
            child.leaving_since = now

    def _judge(self, child: Child, current: Assignment, now: float) -> None:
        if (error := overdue(current, now)) is not None:
            self.end(child, current, Outcome.TIMED_OUT, error)
            return
        memory_limits.give_cgroup(child, current, self._slots.zygotes.groups)
        if (over := memory_limits.verdict(child, current)) and self._slots.isolate(child, over):
            child.signal(signal.SIGKILL)

    def end(self, child: Child, current: Assignment, outcome: Outcome, error: str) -> None:
        """Send SIGTERM now and SIGKILL later, unless the job has just ended: a signal would hit the next one."""
        if child.shared:
            self._sharing.end(child, current, Verdict(outcome, error))
        elif self._slots.isolate(child, Verdict(outcome, error)):
            if outcome is Outcome.TIMED_OUT:
                _log.warning("Job %s timed out", short_id(current.job.id), extra=job_log.fields(current.job))
            current.term_sent = running_time.now()
            child.signal(signal.SIGTERM)

    def _kill_overdue(self, child: Child, current: Assignment, now: float) -> None:
        late_s = math.inf if current.term_sent is None else now - current.term_sent
        if late_s < KILL_AFTER_S - DUMP_S or (child.has_begun() and not self._slots.isolate(child)):
            return
        if late_s > KILL_AFTER_S:
            child.signal(signal.SIGKILL)
        else:
            child.ask_stack()

    def _kill_untrusted(self, child: Child) -> None:
        """Kill a job whose lease can't be trusted: another worker may run it soon.

        The lease stays known until the end is written, or reconciliation would adopt the attempt and run it twice.
        The job is given back at no cost; one that stops its own supervisor is charged later (`Supervisor._obey`).
        """
        job = child.current.job
        _log.error("job %s: %s; its process is killed", short_id(job.id), LEASE_LOST.error, extra=job_log.fields(job))
        self._leases.not_kept.update(child.given)
        self._slots.release_behind(child)  # Their leases are as old.
        for one in child.given.values():
            one.decide(LEASE_LOST)
        child.signal(signal.SIGKILL)
