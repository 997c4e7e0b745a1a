"""Deaths: what becomes of the jobs of a child, a parent or a zygote that has died."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from outlive.protocol import Exited
from outlive.states import Outcome
from outlive.worker.cgroups import Group
from outlive.worker.children import Assignment, Child
from outlive.worker.deferred_ends import looks_stopped
from outlive.worker.ends import MAX_ZYGOTES, NotImported, Unproven, ZygoteDeaths, divided, unanswered
from outlive.worker.oom import Kills, Verdict, in_group

if TYPE_CHECKING:
    from outlive.worker.slots import Slots

WITH_PARENT = (Outcome.RELEASED, "the process was killed with its parent")
MANY_ZYGOTES = (Outcome.LOST, f"{MAX_ZYGOTES} zygotes died in a short time while it ran")


class Deaths:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.unproven, self._not_imported = Unproven(), NotImported()
        self.oom_kills, self._zygotes = Kills(), ZygoteDeaths()

    def by_kernel(self, child: Child, group: Group, failed: Assignment) -> Verdict | None:
        """The verdict about a job that has failed, if the kernel has killed one of its processes."""
        return self.unproven.judge(failed, in_group(child, group, failed), Outcome.OUT_OF_MEMORY)

    def child_exited(self, child: Child, exit: Exited) -> None:
        """A child died. The job that it had begun and not answered is the culprit; the others are released."""
        self._end_jobs(child, exit, blame=Outcome.OUT_OF_MEMORY)

    def parent_died(self, child: Child, exit: Exited, *, only: bool) -> None:
        """A child died with its parent. Its job is released: the kernel, another child or a stranger may be the cause.

        A job whose parent dies each time is blamed, if no other child may have killed the parent.
        """
        blame: Outcome | None = Outcome.OUT_OF_MEMORY
        if child.given and child.has_begun() and child.current.verdict is None and not self._slots.stopping:
            current = child.current
            current.verdict = self._killed_by_kernel(child, current, exit)
            if current.verdict is None:
                current.verdict = WITH_PARENT
                blame = Outcome.CRASHED if only else None
        self._end_jobs(child, exit, blame=blame)

    def zygote_died(self) -> str:
        """A zygote died, and its jobs go on. Those that have seen many die in a short time are given up.

        Returns what is known about the cause, for the log.
        """
        if self.oom_kills.account_for_one(self._slots.zygotes.groups):
            return ", probably killed by the kernel for lack of memory"
        since = self._zygotes.note(time.monotonic())
        if since is not None and not self._slots.stopping:
            for child in self._slots.busy:
                if child.current.verdict is None and child.current.started < since and child.has_begun():
                    self._slots.release_behind(child)
                    child.current.verdict = MANY_ZYGOTES
                    child.signal(signal.SIGKILL)
        return ""

    def _killed_by_kernel(self, child: Child, begun: Assignment, exit: Exited) -> Verdict | None:
        return self.oom_kills.verdict(child, begun, exit, self._slots.zygotes.groups)

    def _end_jobs(self, child: Child, exit: Exited, *, blame: Outcome | None) -> None:
        """`blame` is the end of a job whose child dies again and again without proof; None if it is never blamed."""
        if not child.given:
            return
        begun, others = divided(child)
        if begun is None and (others[0].verdict is not None or self.unproven.too_often(others[0])):
            begun = others.pop(0)
        if begun is not None:
            verdict = begun.verdict or self._killed_by_kernel(child, begun, exit)
            begun.verdict = self.unproven.judge(begun, verdict, blame)
        if begun is not None and self._not_imported.concerns(begun):
            self._slots.report.ended(begun.job, self._not_imported.end(child, begun, exit.status))
        elif begun is not None:
            end = unanswered(child, begun, exit)
            stopped = begun.verdict is None and (self._slots.stopping or looks_stopped(exit.status, end.stack))
            self._slots.report_end(begun, end, stopped=stopped)
        child.given.clear()
        for other in others:
            self._slots.release(other.job)
