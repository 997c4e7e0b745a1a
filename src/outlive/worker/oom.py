"""Whether the kernel killed a child for want of memory: exact by the counts of our cgroups, else a possibility."""

from __future__ import annotations

import os
import signal
import time

from outlive import kernel
from outlive.states import Outcome
from outlive.worker.cgroups import Group, Groups
from outlive.worker.children import Assignment, Child

Verdict = tuple[Outcome, str]
ANSWER_S = 1.0
POSSIBLY = (
    "the process was killed by SIGKILL; the kernel killed a process for want of memory at that time, possibly this one"
)


def in_group(group: Group, current: Assignment) -> Verdict | None:
    """By the count of a child's own group: the kernel killed the child, or a process that the job has started."""
    if group.kills() <= current.kills_before:
        return None
    current.peak_bytes = max(current.peak_bytes, group.peak_bytes())
    limit = "" if current.memory_bytes is None else f"; the job may have {current.memory_bytes:,} bytes"
    return Outcome.OUT_OF_MEMORY, f"the kernel killed a process of the job for want of memory{limit}"


class Kills:
    """What has been counted and not been put down to a job yet."""

    def __init__(self) -> None:
        self._machine = _of_the_machine()
        self._answered_for = self._seen = 0
        self._looked_at = 0.0

    def forget_old(self, groups: Groups | None) -> None:
        """A kill that no dead child has answered for within a second was that of a process which a job had started."""
        now = time.monotonic()
        if groups is not None and now - self._looked_at > ANSWER_S:
            self._looked_at = now
            self._answered_for = max(self._answered_for, self._seen)
            self._seen = groups.zygote.kills()

    def verdict(self, child: Child, current: Assignment, status: int, groups: Groups | None) -> Verdict | None:
        """Of a child that is dead; None if this was not the kernel's doing, or is known to be the worker's."""
        if current.verdict is not None or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return None
        if child.group is not None and (verdict := in_group(child.group, current)):
            return verdict
        if groups is not None:
            if groups.zygote.kills() <= self._answered_for:
                return None
            self._answered_for += 1
            return Outcome.OUT_OF_MEMORY, "the kernel killed the process for want of memory"
        before, self._machine = self._machine, _of_the_machine()
        return (Outcome.CRASHED, POSSIBLY) if self._machine > before else None


def _of_the_machine() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    _, _, found = kernel.read("/proc/vmstat").partition(b"\noom_kill ")
    return int(found.split(None, 1)[0]) if found else 0
