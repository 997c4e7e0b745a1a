"""The watch: it checks the time, progress, memory and leases of running jobs, and ends those that exceed a limit.

A shared child can't tell that its loop is blocked, so its pulse (protocol.PULSE) is read from outside. A job that
blocks it is charged only if its code certainly ran all the time. What becomes of the others is in
ending/process_deaths.py.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time

from outlive import linux
from outlive.protocol import FOR_ALL, TICK_S
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.limits import memory_limits, running_time
from outlive.worker.processes.assignments import LEASE_LOST, Assignment, Verdict
from outlive.worker.processes.children import KILL_AFTER_S, LEAVE_S, Child, Pulse, Shared
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting import job_log

WATCH_S = 0.05
IDLE_S = 0.2
"""How often it looks while the worker has nothing to do. It must be less than GAP_S (running_time.py)."""
DUMP_S = 0.2
"""So long before SIGKILL a job that ignores SIGTERM, with which its stack is written, is asked for its stack."""
BEGIN_S = 2.0
"""A child that takes longer than this to begin its job is stuck."""
LOOK_S = 0.25
"""How often the jobs of a shared child are looked at: they may be thousands."""
STILL_S = 2 * TICK_S
"""A loop that does not tick for longer than this stands still."""
ABORT_S = 1.0
"""How long a blocked process may take to write its stack and die, before it is killed."""
FULL = 0.8
"""A shared child that has this part of its memory limit takes no more jobs, and is replaced."""


class Watch:
    def __init__(self, slots: Slots) -> None:
        self._slots, self._leases = slots, slots.leases

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
                self._judge_shared(child, child.shared, now, ran_until)
            else:
                self._judge(child, child.current, now, ran_until)
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
            log.warning("child %d still runs %g s after its last job: it is killed", child.pid, LEAVE_S)
            child.signal(signal.SIGKILL)
            child.leaving_since = now

    def end(self, child: Child, one: Assignment, outcome: Outcome, error: str) -> None:
        """Ask a job to end, and kill it later if it does not. If it has just ended, a signal would hit the next one."""
        verdict = Verdict(outcome, error)
        if not child.shared and not self._slots.isolate(child, verdict):
            return
        one.decide(verdict)
        if outcome is Outcome.TIMED_OUT:
            job_log.note("WARNING", "Job %s timed out", one.job)
        self._stop(child, one)

    def _stop(self, child: Child, one: Assignment) -> None:
        one.term_sent = running_time.now()
        if child.shared:
            child.halt(one, asks_stack=True)
        else:
            child.signal(signal.SIGTERM)

    def _end_overdue(self, child: Child, one: Assignment, now: float) -> bool:
        """End a job whose time is over. False while it is not."""
        if one.timeout_s is not None and now - one.counted_from > one.timeout_s:
            error = f"Hard timeout exceeded: it ran for more than {one.timeout_s:g} s"
        elif one.stall_s is not None and now - one.moved > one.stall_s:
            error = f"Stalled: no progress for {one.stall_s:g} s"
        else:
            return False
        self.end(child, one, Outcome.TIMED_OUT, error)
        return True

    # A job that has its process for itself

    def _judge(self, child: Child, current: Assignment, now: float, ran_until: float) -> None:
        slots = self._slots
        ending = current.verdict is LEASE_LOST or child.distrusted
        if self._leases.expired(current.job.token, now) and not ending:
            self._kill_untrusted(child)
        elif current.verdict is not None:
            self._kill_overdue(child, current, ran_until)
        elif not child.has_begun():
            if ran_until - current.counted_from > BEGIN_S and not child.unsent:
                slots.give_up_on(child)
        else:
            if not self._end_overdue(child, current, ran_until):
                memory_limits.give_cgroup(child, current, slots.zygotes.groups)
                if (over := memory_limits.verdict(child, current)) and slots.isolate(child, over):
                    child.signal(signal.SIGKILL)
            if len(child.given) > 1 and child.runs_over(now):
                slots.relieve(child)

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
        job_log.note("ERROR", "job %s: %s; its process is killed", child.current.job, LEASE_LOST.error)
        self._leases.not_kept.update(child.given)
        self._slots.release_behind(child)  # Their leases are as old.
        for one in child.given.values():
            one.decide(LEASE_LOST)
        child.signal(signal.SIGKILL)

    # Jobs that share a process

    def _judge_shared(self, child: Child, shared: Shared, now: float, ran_until: float) -> None:
        pulse = child.pulse()
        if shared.aborted_at is not None:
            if ran_until - shared.aborted_at > ABORT_S:
                child.signal(signal.SIGKILL)
            return
        if pulse.ticks != shared.ticks:
            self._forgive(child, shared, ran_until)
            shared.ticks, shared.turned_at, shared.others_cpu_s = pulse.ticks, ran_until, None
        else:
            self._judge_loop(child, shared, pulse.running, ran_until)
        limit_bytes = child.current.facts.memory_bytes
        if limit_bytes is not None:
            self._judge_memory(child, shared, pulse, limit_bytes)
        if ran_until - shared.looked_at < LOOK_S:
            return
        shared.looked_at = ran_until
        if self._kill_untrusted_shared(child, now):
            return
        stands = ran_until - shared.turned_at > STILL_S and pulse.running != FOR_ALL
        for one in list(child.given.values()):
            if stands and one.job.token != pulse.running:
                continue
            if one.term_sent is not None:
                late_s = ran_until - one.term_sent
                if late_s > KILL_AFTER_S:
                    child.signal(signal.SIGKILL)
                elif late_s > KILL_AFTER_S - 2 * LOOK_S and one.stack is None:  # It blocks the loop.
                    child.ask_stack()
            elif one.verdict is not None:
                self._stop(child, one)
            else:
                self._end_overdue(child, one, ran_until)

    def _kill_untrusted_shared(self, child: Child, now: float) -> bool:
        """The same for a shared child, if the lease of one of its jobs can't be trusted."""
        late = [one for one in child.given.values() if self._leases.expired(one.job.token, now)]
        fresh = [one for one in late if one.verdict is not LEASE_LOST]
        if fresh:
            log.error("%d jobs of child %d: %s; it is killed", len(fresh), child.pid, LEASE_LOST.error)
            self._leases.not_kept.update(one.job.token for one in fresh)
            for one in fresh:
                one.decide(LEASE_LOST)
            child.signal(signal.SIGKILL)
        return bool(late)

    def _forgive(self, child: Child, shared: Shared, now: float) -> None:
        """The loop stood still until now. That time counts for the job whose code ran, and for no other."""
        still_s = now - shared.turned_at
        if still_s > STILL_S and shared.blocker != FOR_ALL:
            for one in child.given.values():
                if one.job.token != shared.blocker:
                    one.counted_from, one.moved = min(now, one.counted_from + still_s), min(now, one.moved + still_s)
                    one.term_sent = None if one.term_sent is None else min(now, one.term_sent + still_s)

    def _judge_loop(self, child: Child, shared: Shared, token: int, now: float) -> None:
        """Kill a child whose loop stands still. Its death writes the stack of each thread."""
        still_s, shared.blocker = now - shared.turned_at, token
        if still_s > STILL_S and shared.others_cpu_s is None:
            shared.others_cpu_s = linux.cpu_of_other_threads(child.pid)
        if still_s < self._slots.config.block_s + TICK_S or token == FOR_ALL:
            return
        if self._slots.report.owes_answer(child, token):  # The job waits for this worker, or for the database.
            shared.turned_at = now
            return
        one = child.given.get(token)
        busy_s = linux.cpu_of_other_threads(child.pid) - (shared.others_cpu_s or 0.0)
        if one is not None and busy_s < still_s / 2 and not linux.is_stopped(child.pid):
            beside = len(child.given) - 1
            error = f"it blocked the event loop that it shares with {beside} other jobs for {still_s:.1f} s"
            one.decide(Verdict(Outcome.CRASHED, error))
            job_log.note("ERROR", "job %s: %s; its process is killed", one.job, error)
        else:
            text = "the loop of child %d of %s stood still for %.1f s, and no job is known to block it: it is killed"
            log.error(text, child.pid, child.task, still_s)
        shared.aborted_at = now
        child.retiring = True
        child.signal(signal.SIGABRT)

    def _judge_memory(self, child: Child, shared: Shared, pulse: Pulse, limit_bytes: int) -> None:
        """Replace a child that has nearly as much memory as it may have, and kill one that has more.

        What it grows is noted for the job whose code runs now, or ran last: over time that shows which takes most.
        """
        memory_limits.give_cgroup(child, child.current, self._slots.zygotes.groups)
        used_bytes = memory_limits.used_bytes(child, limit_bytes)
        one = child.given.get(pulse.running or pulse.ran_last)
        if one is not None and used_bytes > shared.used_bytes:
            one.grown_bytes += used_bytes - shared.used_bytes
        shared.used_bytes = used_bytes
        if used_bytes > limit_bytes:
            text = "child %d of %s has %s bytes, over the limit of %s: it is killed, and its %d jobs begin again"
            log.error(text, child.pid, child.task, f"{used_bytes:,}", f"{limit_bytes:,}", len(child.given))
            most = max(child.given.values(), key=lambda one: one.grown_bytes)
            shared.grower = most.job.token if most.grown_bytes > used_bytes // 2 else 0
            child.retiring, shared.aborted_at = True, running_time.now()
            child.signal(signal.SIGKILL)
        elif used_bytes > FULL * limit_bytes and not child.retiring:
            text = "child %d of %s has %s of %s bytes: it takes no more jobs, and is replaced"
            log.info(text, child.pid, child.task, f"{used_bytes:,}", f"{limit_bytes:,}")
            child.retire()
