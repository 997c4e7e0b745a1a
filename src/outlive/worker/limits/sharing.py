"""The watch over shared children: the time of each job, the event loop that they share, and the memory of all together.

A child can't tell that its loop is blocked, so its pulse (protocol.PULSE) is read from outside. A job that blocks it is
charged only if its code certainly ran all the time. What becomes of the others is in ending/process_deaths.py.
"""

from __future__ import annotations

import logging
import signal

from outlive import linux
from outlive.humanize import short_id
from outlive.protocol import FOR_ALL, TICK_S
from outlive.states import Outcome
from outlive.worker.limits import memory_limits, running_time
from outlive.worker.processes.assignments import LEASE_LOST, Assignment, Verdict
from outlive.worker.processes.children import KILL_AFTER_S, Child, Pulse, Shared
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting import job_log

LOOK_S = 0.25
"""How often the jobs of a shared child are looked at: they may be thousands."""
STILL_S = 2 * TICK_S
"""A loop that does not tick for longer than this stands still."""
DUMP_S = 1.0
"""How long a blocked process may take to write its stack and die, before it is killed."""
FULL = 0.8
"""A child that has this part of its memory limit takes no more jobs, and is replaced."""

_log = logging.getLogger("outlive.worker")


def overdue(one: Assignment, now: float) -> str | None:
    """Why the time of a job is over; None while it is not."""
    if one.timeout_s is not None and now - one.counted_from > one.timeout_s:
        return f"Hard timeout exceeded: it ran for more than {one.timeout_s:g} s"
    if one.stall_s is not None and now - one.moved > one.stall_s:
        return f"Stalled: no progress for {one.stall_s:g} s"
    return None


class SharedWatch:
    def __init__(self, slots: Slots) -> None:
        self._slots, self._leases = slots, slots.leases

    def judge(self, child: Child, shared: Shared, now: float, ran_until: float) -> None:
        pulse = child.pulse()
        if shared.aborted_at is not None:
            if ran_until - shared.aborted_at > DUMP_S:
                child.signal(signal.SIGKILL)
            return
        if pulse.ticks != shared.ticks:
            self._forgive(child, shared, ran_until)
            shared.ticks, shared.turned_at, shared.others_cpu_s = pulse.ticks, ran_until, None
        else:
            self._judge_loop(child, shared, pulse.running, ran_until)
        limit_bytes = next(iter(child.given.values())).facts.memory_bytes
        if limit_bytes is not None:
            self._judge_memory(child, shared, pulse, limit_bytes)
        if ran_until - shared.looked_at < LOOK_S:
            return
        shared.looked_at = ran_until
        if self._kill_untrusted(child, now):
            return
        stands = ran_until - shared.turned_at > STILL_S and pulse.running != FOR_ALL
        for one in list(child.given.values()):
            if not stands or one.job.token == pulse.running:
                self._judge_job(child, one, ran_until)

    # Jobs

    def _judge_job(self, child: Child, one: Assignment, now: float) -> None:
        if one.term_sent is not None:
            if now - one.term_sent > KILL_AFTER_S:
                child.signal(signal.SIGKILL)
        elif one.verdict is not None:
            self.end(child, one, one.verdict)
        elif (error := overdue(one, now)) is not None:
            _log.warning("Job %s timed out", short_id(one.job.id), extra=job_log.fields(one.job))
            self.end(child, one, Verdict(Outcome.TIMED_OUT, error))

    def end(self, child: Child, one: Assignment, verdict: Verdict) -> None:
        """Cancel a job. If it ignores that, its process is killed."""
        one.decide(verdict)
        one.term_sent = running_time.now()
        child.halt(one)

    def _kill_untrusted(self, child: Child, now: float) -> bool:
        """Kill a child if the lease of one of its jobs can't be trusted any more: others may run that soon."""
        late = [one for one in child.given.values() if self._leases.expired(one.job.token, now)]
        fresh = [one for one in late if one.verdict is not LEASE_LOST]
        if fresh:
            _log.error("%d jobs of child %d: %s; it is killed", len(fresh), child.pid, LEASE_LOST.error)
            self._leases.not_kept.update(one.job.token for one in fresh)
            for one in fresh:
                one.decide(LEASE_LOST)
            child.signal(signal.SIGKILL)
        return bool(late)

    # The loop

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
            _log.error("job %s: %s; its process is killed", short_id(one.job.id), error, extra=job_log.fields(one.job))
        else:
            text = "the loop of child %d of %s stood still for %.1f s, and no job is known to block it: it is killed"
            _log.error(text, child.pid, child.task, still_s)
        shared.aborted_at = now
        child.retiring = True
        child.signal(signal.SIGABRT)

    # Memory

    def _judge_memory(self, child: Child, shared: Shared, pulse: Pulse, limit_bytes: int) -> None:
        """Replace a child that has nearly as much memory as it may have, and kill one that has more.

        What it grows is noted for the job whose code runs now, or ran last: over time that shows which takes most.
        """
        memory_limits.give_cgroup(child, next(iter(child.given.values())), self._slots.zygotes.groups)
        used_bytes = memory_limits.used_bytes(child, limit_bytes)
        one = child.given.get(pulse.running or pulse.ran_last)
        if one is not None and used_bytes > shared.used_bytes:
            one.grown_bytes += used_bytes - shared.used_bytes
        shared.used_bytes = used_bytes
        if used_bytes > limit_bytes:
            text = "child %d of %s has %s bytes, over the limit of %s: it is killed, and its %d jobs begin again"
            _log.error(text, child.pid, child.task, f"{used_bytes:,}", f"{limit_bytes:,}", len(child.given))
            most = max(child.given.values(), key=lambda one: one.grown_bytes)
            shared.grower = most.job.token if most.grown_bytes > used_bytes // 2 else 0
            child.retiring, shared.aborted_at = True, running_time.now()
            child.signal(signal.SIGKILL)
        elif used_bytes > FULL * limit_bytes and not child.retiring:
            text = "child %d of %s has %s of %s bytes: it takes no more jobs, and is replaced"
            _log.info(text, child.pid, child.task, f"{used_bytes:,}", f"{limit_bytes:,}")
            child.retire()
