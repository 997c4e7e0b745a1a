"""Whether the kernel killed a child for lack of memory: exact with cgroups, otherwise only a possibility."""

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
    "the process was killed by SIGKILL; the kernel killed a process for lack of memory at that time, possibly this one"
)


def in_group(group: Group, current: Assignment) -> Verdict | None:
    """By the counter of the child's own group: the kernel killed the child, or a process that the job started."""
    if group.kills() <= current.kills_before:
        return None
    current.peak_bytes = max(current.peak_bytes, group.peak_bytes())
    limit = "" if current.memory_bytes is None else f"; the job may have {current.memory_bytes:,} bytes"
    return Outcome.OUT_OF_MEMORY, f"the kernel killed a process of the job for lack of memory{limit}"


class Kills:
    """Kills that the kernel has counted and that no job accounts for yet."""

    def __init__(self) -> None:
        self._machine = _of_the_machine()
        self._answered_for = self._seen = 0
        self._looked_at = 0.0

    def forget_old(self, groups: Groups | None) -> None:
        """A kill that no dead child accounts for within a second hit another process that a job had started."""
        now = time.monotonic()
        if groups is not None and now - self._looked_at > ANSWER_S:
            self._looked_at = now
            self._answered_for = max(self._answered_for, self._seen)
            self._seen = groups.zygote.kills()

    def verdict(self, child: Child, current: Assignment, status: int, groups: Groups | None) -> Verdict | None:
        """The verdict about a dead child; None if the kernel did not kill it, or the worker is known to have."""
        if current.verdict is not None or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return None
        if child.group is not None and (verdict := in_group(child.group, current)):
            return verdict
        if groups is not None:
            if groups.zygote.kills() <= self._answered_for:
                return None
            self._answered_for += 1
            return Outcome.OUT_OF_MEMORY, "the kernel killed the process for lack of memory"
        before, self._machine = self._machine, _of_the_machine()
        return (Outcome.CRASHED, POSSIBLY) if self._machine > before else None


def _of_the_machine() -> int:
    """How many processes the kernel has killed for lack of memory since it started."""
    _, _, found = kernel.read("/proc/vmstat").partition(b"\noom_kill ")
    return int(found.split(None, 1)[0]) if found else 0
