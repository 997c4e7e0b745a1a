"""Whether the kernel killed a process of a job for lack of memory, and whether the job was the cause.

With cgroups a kill by the kernel is certain, otherwise only a possibility. A job is the cause if its own group was
full, or if its processes had more than half of the memory that there is. Otherwise others used the memory, and the
kernel chose the job: it prefers jobs to all other processes.
"""

from __future__ import annotations

import time

from outlive import kernel
from outlive.protocol import Exited
from outlive.states import Outcome
from outlive.worker import cgroups
from outlive.worker.cgroups import Group, Groups
from outlive.worker.children import Assignment, Child, Verdict

ANSWER_S = 1.0
KILLED = "the kernel killed a process of the job for lack of memory"
POSSIBLY = (
    "the process was killed by SIGKILL; the kernel killed a process for lack of memory at that time, possibly this one"
)


def in_group(child: Child, group: Group, current: Assignment, exit: Exited | None = None) -> Verdict | None:
    """By the counter of the child's own group: the kernel killed the child, or a process that the job started."""
    if group.kills() <= current.kills_before:
        return None
    reported_bytes = kernel.peak_bytes(child.pid) if exit is None else exit.peak_memory_bytes
    limit_bytes = current.memory_bytes
    if limit_bytes is None or not group.was_full(_known_bytes(child, current, reported_bytes), limit_bytes):
        return _by_share(child, current, KILLED, reported_bytes)
    current.peak_bytes = max(current.peak_bytes, group.peak_bytes())
    return Verdict(Outcome.OUT_OF_MEMORY, f"{KILLED}; the job may have {limit_bytes:,} bytes")


def _known_bytes(child: Child, current: Assignment, reported_bytes: int) -> int:
    """The most that the job is known to have had. One that was never measured has had no time to fill a page cache."""
    if current.memory_bytes is not None and current.series is None:
        return current.memory_bytes
    return _own_bytes(child, current, reported_bytes)


def _own_bytes(child: Child, current: Assignment, reported_bytes: int) -> int:
    """The most that the job is known to have had, without what it shares with the zygote."""
    inherited_bytes = 0 if child.executed else child.zygote.memory_bytes
    measured_bytes = 0 if current.series is None else current.series.most_bytes()
    if current.memory_bytes is None:  # What it shares with the zygote is subtracted only for jobs with a limit.
        measured_bytes -= inherited_bytes
    return max(0, reported_bytes - inherited_bytes, measured_bytes)


def _by_share(
    child: Child, current: Assignment, words: str, reported_bytes: int, blame: Outcome = Outcome.OUT_OF_MEMORY
) -> Verdict:
    """Blame the job only if it had more memory than all others together: the kernel may choose another victim."""
    own_bytes = _own_bytes(child, current, reported_bytes)
    all_bytes = cgroups.memory_bytes()
    share = f"the job had {own_bytes:,} of {all_bytes:,} bytes"
    if own_bytes > all_bytes // 2:
        return Verdict(blame, f"{words}: {share}")
    return Verdict(Outcome.RELEASED, f"{words}, of which others used more: {share}")


class Kills:
    """Kills that the kernel has counted and that no job accounts for yet."""

    def __init__(self) -> None:
        self._before = _of_the_machine()
        self._answered_for = self._seen = 0
        self._looked_at = 0.0

    def forget_old(self, groups: Groups | None) -> None:
        """A kill that no dead child accounts for within a second hit another process."""
        now = time.monotonic()
        if now - self._looked_at > ANSWER_S:
            self._looked_at = now
            self._answered_for = max(self._answered_for, self._seen)
            self._seen = self._counted(groups)

    def account_for_one(self, groups: Groups | None) -> bool:
        """Whether the kernel has killed a process that no death accounts for. This one accounts for it."""
        if self._counted(groups) <= self._answered_for:
            return False
        self._answered_for += 1
        return True

    def _counted(self, groups: Groups | None) -> int:
        """How many processes the kernel has killed for lack of memory: of jobs, or without groups of the machine."""
        return _of_the_machine() - self._before if groups is None else groups.zygote.kills()

    def verdict(self, child: Child, current: Assignment, exit: Exited, groups: Groups | None) -> Verdict | None:
        """The verdict about a child that died of SIGKILL; None if the kernel did not send that."""
        if child.group is not None and (verdict := in_group(child, child.group, current, exit)):
            return verdict
        if not self.account_for_one(groups):
            return None
        words, blame = (POSSIBLY, Outcome.CRASHED) if groups is None else (KILLED, Outcome.OUT_OF_MEMORY)
        return _by_share(child, current, words, exit.peak_memory_bytes, blame)


def _of_the_machine() -> int:
    """How many processes the kernel has killed for lack of memory since it started."""
    _, _, found = kernel.read("/proc/vmstat").partition(b"\noom_kill ")
    return int(found.split(None, 1)[0]) if found else 0
