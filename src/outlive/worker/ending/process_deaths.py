"""Deaths: what becomes of the jobs of a child, a parent or a zygote that has died.

The job that a child had begun and not answered is blamed, unless another process may be the cause: then it is released,
up to a limit, so that a job that kills its parent each time is caught too. What an outcome costs the job (a retry,
quarantine) is decided by outlive.verdict (verdict.sql).

The jobs of a shared child begin again at once, in the same attempt and at no cost, except for those about which
something was decided. The one whose code ran when the process died, or that made it grow beyond its limit, gets a
process of its own, where its next death is its own. The others share again, at their second death in small groups, and
after that they get processes of their own too.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections import deque
from typing import TYPE_CHECKING
from uuid import UUID

from outlive.humanize import counted
from outlive.model import Ended
from outlive.protocol import Exited
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.ending.ends import LOG_AGAIN_S, MAX_LINE_CHARS, last_line, looks_stopped
from outlive.worker.limits.memory_limits import Kills, in_group, peak_bytes
from outlive.worker.processes.assignments import LEASE_LOST, Assignment, Verdict
from outlive.worker.processes.children import Child, Shared
from outlive.worker.processes.job_output import JobOutput
from outlive.worker.reporting import job_log

if TYPE_CHECKING:
    from outlive.worker.processes.slots import Slots

MAX_UNPROVEN = 10
"""How often in a row the process of a job may die without proof against the job, before the job is blamed."""
MAX_SHARED = 3
"""How many shared processes may die under a job, before it gets one of its own."""
GROUPS = 16
"""The last of them has this part of the seats: if nothing tells who kills, only those of one small group run alone."""
MAX_BESIDE_STRANGERS = 100
"""The same, while parents die too that had no job."""
STRANGERS_S = 60.0
UNPROVEN_KEPT = 10_000
LONGEST_PAUSE_S = 60.0
MAX_ZYGOTES = 10
ZYGOTES_S = 120.0
"""A job that sees this many zygotes die within this time is given up: it may be what kills them."""
NOT_IMPORTED_S = 5.0
WAIT_S = 10.0
"""How long a job that begins again may wait for a child. It may need one of its own."""

WITH_PARENT = Verdict(Outcome.RELEASED, "the process was killed with its parent")
MANY_ZYGOTES = Verdict(Outcome.LOST, f"{MAX_ZYGOTES} zygotes died in a short time while it ran")

BEGINS_AGAIN = "[its shared process "
"""A line of its output with which a job begins again. It says how an earlier process died."""
_LOG_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")


class Deaths:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.oom_kills = Kills()
        self._unproven: dict[UUID, int] = {}
        """How often in a row the process of a job has died without proof that the job is the cause: before it began,
        with its parent, or for lack of memory that others used."""
        self._stranger_at = -math.inf
        """When a parent was last killed that had no job: no job has done that to its own parent."""
        self._zygotes: deque[float] = deque(maxlen=MAX_ZYGOTES)
        """When the last zygotes died, except for those that the kernel has killed for lack of memory."""
        self._logged = ("", 0.0)

    def child_died(self, child: Child, exit: Exited, *, with_parent: bool) -> None:
        """A child died, alone or with its parent. The job that it had begun ends, and the others are released."""
        if child.shared:
            self._shared_child_died(child, child.shared, exit)
            return
        if not child.given:
            if child.parked:
                _log_parked(child, child.parked, exit)
            return
        others = child.recall()
        begun = list(child.given.values())
        child.given.clear()
        if begun:
            self._end_begun(child, begun.pop(0), exit, with_parent=with_parent)
            others = [*begun, *others]
        elif others[0].verdict is not None or self._count(others[0]) >= self._max_unproven:
            self._end_begun(child, others.pop(0), exit, with_parent=False)
        for other in others:
            self._slots.release(other.job)

    def _end_begun(self, child: Child, begun: Assignment, exit: Exited, *, with_parent: bool) -> None:
        verdict = begun.verdict
        if verdict is None:
            verdict = self._cause(child, begun, exit, with_parent=with_parent)
        elif verdict is not LEASE_LOST:
            verdict = self._blamed_at_last(begun, verdict, Outcome.OUT_OF_MEMORY)
        explained = verdict is not None and verdict.outcome is not Outcome.CRASHED
        if not begun.facts.preload and not begun.imported and not explained:
            self._slots.report.ended(begun.job, self._not_imported(child, begun, exit.status))
            return
        end = unanswered(child, begun, exit, verdict)
        stopped = verdict is None and (self._slots.stopping or looks_stopped(exit.status, end.stack))
        self._slots.report_end(begun, end, verdict, stopped=stopped)

    def _cause(self, child: Child, begun: Assignment, exit: Exited, *, with_parent: bool) -> Verdict | None:
        """What killed a child: the kernel, or what has killed its parent. None: the job itself."""
        if exit.status == signal.SIGKILL:
            groups = self._slots.zygotes.groups
            if (verdict := self.oom_kills.verdict(child, begun, exit, groups)) is not None:
                return self._blamed_at_last(begun, verdict, Outcome.OUT_OF_MEMORY)
        if with_parent and not self._slots.stopping:
            only = child.parent.culprits == 1  # No other child may have killed it.
            return self._blamed_at_last(begun, WITH_PARENT, Outcome.CRASHED) if only else WITH_PARENT
        return None

    def by_kernel(self, child: Child, current: Assignment) -> Verdict | None:
        """The verdict about a job whose child lives, if the kernel has killed one of its processes."""
        verdict = None if child.group is None else in_group(child, child.group, current)
        return verdict and self._blamed_at_last(current, verdict, Outcome.OUT_OF_MEMORY)

    def _blamed_at_last(self, one: Assignment, verdict: Verdict, blame: Outcome) -> Verdict:
        """A verdict that releases the job, counted: after too many of them in a row, the outcome is `blame`."""
        if verdict.outcome is not Outcome.RELEASED:
            return verdict
        if (times := self._count(one)) >= self._max_unproven:
            return Verdict(blame, f"{verdict.error}, as at its last {times - 1} attempts")
        if blame is Outcome.OUT_OF_MEMORY:  # There may be enough memory later.
            return verdict._replace(again_s=min(LONGEST_PAUSE_S, 2.0**times))
        return verdict

    @property
    def _max_unproven(self) -> int:
        return MAX_BESIDE_STRANGERS if time.monotonic() - self._stranger_at < STRANGERS_S else MAX_UNPROVEN

    def idle_parent_died(self) -> None:
        """A parent was killed that had no job below it."""
        self._stranger_at = time.monotonic()

    def crowd(self, job: UUID, share: int) -> int:
        """How many may run at once in the process of this job: the fewer, the more often one has died under it."""
        times = self._unproven.get(job, 0) if self._unproven else 0
        if times >= MAX_SHARED:
            return 1
        return share if times < MAX_SHARED - 1 else min(share, max(2, share // GROUPS))

    def _count(self, one: Assignment) -> int:
        times = self._unproven[one.job.id] = self._unproven.pop(one.job.id, 0) + 1
        if len(self._unproven) > UNPROVEN_KEPT:
            del self._unproven[next(iter(self._unproven))]
        return times

    def forget(self, one: Assignment) -> None:
        """This attempt has ended by itself."""
        if self._unproven:  # To hash an id takes longer than to look.
            self._unproven.pop(one.job.id, None)

    def _shared_child_died(self, child: Child, shared: Shared, exit: Exited) -> None:
        """A shared child died. Jobs that it had not begun are placed again as they are."""
        slots = self._slots
        # The job that made the process grow beyond its limit, or else the one whose code ran at the death.
        suspect = child.given.get(shared.grower or child.pulse().running)
        waiting, begun = child.recall(), list(child.given.values())
        child.given.clear()
        decided = [one for one in begun if one.verdict is not None]
        for one in decided:
            slots.report_end(one, unanswered(child, one, exit, one.verdict), one.verdict, stopped=False)
        how = _how_shared(child, shared, exit)
        again = [one for one in begun if one.verdict is None]
        if again and not slots.stopping:
            alone = None if suspect is None or suspect.verdict else suspect
            log.error(
                "child %d of %s %s with %s in it%s: %s",
                child.pid, child.task, how, counted(len(begun), "job"),
                "" if alone is None else f", while job {alone.job.id} ran", "they begin again, at no cost",
            )  # fmt: skip
            for one in again:
                if not decided:
                    # As far as is known, the code of the one that is alone has done it.
                    for _ in range(MAX_SHARED if one is alone else 1):
                        self._count(one)
                self._begin_again(one, how)
        for one in again:
            if slots.stopping or one.may_be_over:
                error, output = f"its shared process {how}", child.output_of(one)
                end = Ended(one.job.token, Outcome.RELEASED, error=error, output=output)
                slots.report.ended(one.job, end, completing=one.completing)
        slots.place_again([one for one in (*again, *waiting) if not slots.stopping and not one.may_be_over], WAIT_S)
        for one in waiting if slots.stopping else []:
            slots.release(one.job)

    def _begin_again(self, one: Assignment, how: str) -> None:
        """Forget what the attempt was until now, but not what it has kept. Its output says what happened."""
        one.crowd = self.crowd(one.job.id, one.facts.share)
        one.begun, one.term_sent = False, None
        one.steps = one.steps_bytes = one.grown_bytes = 0
        one.output = one.output or JobOutput()
        where = "in a process of its own" if one.apart else f"beside {one.crowd - 1} others at most"
        one.output.add(f"{BEGINS_AGAIN}{how}: it begins again, {where}]\n".encode(), one.job)

    def _not_imported(self, child: Child, begun: Assignment, status: int) -> Ended:
        """A new interpreter (`preload=False`) died before it had imported the app: its job is released for a moment."""
        output = child.output.end(begun.job)
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        error = f"its interpreter ended ({how}) before the app was imported: {last_line(output)}"
        logged, logged_at = self._logged
        if logged != error or time.monotonic() - logged_at > LOG_AGAIN_S:
            self._logged = (error, time.monotonic())
            log.error("jobs of %s wait, and are retried every %g s: %s", begun.job.task, NOT_IMPORTED_S, error)
        return Ended(begun.job.token, Outcome.RELEASED, error=error, output=output, after_s=NOT_IMPORTED_S)

    def zygote_died(self) -> str:
        """Give up the jobs that have seen many zygotes die in a short time. Returns what is known of the cause."""
        if self.oom_kills.unaccounted(self._slots.zygotes.groups):
            return ", probably killed by the kernel for lack of memory"
        now = time.monotonic()
        self._zygotes.append(now)
        since = self._zygotes[0]
        if len(self._zygotes) == self._zygotes.maxlen and now - since <= ZYGOTES_S and not self._slots.stopping:
            for child in self._slots.busy:
                if child.shared:
                    continue  # Its death would name none of its jobs.
                if child.current.verdict is None and child.current.started < since and child.has_begun():
                    self._slots.release_behind(child)
                    child.current.decide(MANY_ZYGOTES)
                    child.signal(signal.SIGKILL)
        return ""


def _log_parked(child: Child, one: Assignment, exit: Exited) -> None:
    """A process that was parked has died. That costs its job nothing: it goes on in another one."""
    verdict = None if child.group is None else in_group(child, child.group, one, exit)
    why = verdict.error if verdict else _how(exit.status)
    job_log.note("WARNING", "job %s waits, and its process has died: %s", one.job, why)


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code} and no result"
    return f"the process {how}"


def unanswered(child: Child, begun: Assignment, exit: Exited, verdict: Verdict | None) -> Ended:
    """The end of the job that a dead child had begun."""
    code = os.waitstatus_to_exitcode(exit.status)
    killed_by = signal_name(-code) if code < 0 else None
    output = child.output_of(begun)
    if verdict is None:
        verdict = Verdict(Outcome.CRASHED, _how(exit.status))
    outcome, error, again_s = verdict
    if steps := child.steps_under_way():
        error = f"{error} in the step {steps}"
    if outcome is Outcome.CRASHED and (last := last_line(output)) and not _is_logged(last, begun.job.id):
        error = f"{error}: {last}"
    took_s = time.monotonic() - begun.started
    return Ended(
        token=begun.job.token,
        outcome=outcome,
        error=error,
        exit_code=None if killed_by else code,
        signal=killed_by or ("SIGKILL" if outcome is Outcome.OUT_OF_MEMORY else None),
        killed=True,
        final=begun.is_final(outcome),
        peak_memory_bytes=max(peak_bytes(child, begun, exit.peak_memory_bytes), begun.peak_bytes),
        cpu_s=max(0.0, exit.cpu_s - child.cpu_s),
        output=output,
        stack=begun.stack or child.stack_of_ended(),
        after_s=again_s,
        source_ok=False if outcome is Outcome.TIMED_OUT else None,
        took_s=took_s,
        memory=begun.memory(outcome, took_s),
    )


def _is_logged(line: str, job: UUID) -> bool:
    """Whether it is the line of a log, by which a job says what it begins, and not why its process dies."""
    return str(job) in line or line.startswith(BEGINS_AGAIN) or _LOG_LEVEL.search(line) is not None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _how_shared(child: Child, shared: Shared, exit: Exited) -> str:
    code = os.waitstatus_to_exitcode(exit.status)
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    if exit.status == signal.SIGKILL and child.group is not None and child.group.kills():
        how += " for lack of memory"
    last = shared.output.last[:MAX_LINE_CHARS]
    return f"{how} ({last})" if last else how
