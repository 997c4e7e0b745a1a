"""Memory limits: how much a job's processes use beyond what its child had before, and whether the kernel killed one.

With cgroups a kill by the kernel is certain, otherwise only a possibility. A job is the cause if its own group was
full, or if its processes had more than half of the memory that there is. Otherwise others used the memory, and the
kernel chose the job: it prefers jobs to all other processes.
"""

from __future__ import annotations

import asyncio
import signal
import time

from outlive import linux
from outlive.protocol import Exited
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.limits import cgroups
from outlive.worker.limits.cgroups import Group, Groups
from outlive.worker.limits.memory import LITTLE_BYTES, MemorySeries
from outlive.worker.processes.assignments import Assignment, Verdict
from outlive.worker.processes.children import Child

STEP_S = 0.05
"""The first steps of what is kept of the memory of a job with a limit: it is measured that often in any case."""
SAMPLE_AFTER_S = 1.0
SAMPLE_S = 0.5
"""The memory of a job without a limit is read this long after its beginning, and this often at first."""
ACCOUNT_S = 1.0
KILLED = "the kernel killed a process of the job for lack of memory"
POSSIBLY = (
    "the process was killed by SIGKILL; the kernel killed a process for lack of memory at that time, possibly this one"
)


def give_cgroup(child: Child, current: Assignment, groups: Groups | None) -> None:
    """Move a child whose job has a memory limit into its own group. Most jobs end before that, and cost nothing."""
    if groups is None or child.group is not None or current.memory_bytes is None:
        return
    if (group := groups.new(child.pid)) is not None:
        child.limit(current, group)
        try:
            asyncio.get_running_loop().run_in_executor(None, group.gather, child.pid)
            child.group = group
        except RuntimeError:  # No thread can be started.
            groups.remove(group)


def verdict(child: Child, current: Assignment) -> Verdict | None:
    """Whether a job uses more than its limit. Its child retires if earlier jobs left more than that."""
    if not current.facts.preload:
        child.executed = child.executed or b"outlive.child.serving" in linux.read(f"/proc/{child.pid}/cmdline")
        if not child.executed:
            return None
        current.peak_bytes = max(current.peak_bytes, linux.peak_bytes(child.pid))
    if child.group is not None and (killed := in_group(child, child.group, current)):
        return killed if linux.peak_bytes(child.pid) else None  # The exit of a dead child has its peak.
    if current.memory_bytes is None:
        _sample(child, current)
        return None
    return _measure(child, current, current.memory_bytes)


def peak_bytes(child: Child, current: Assignment, reported_bytes: int) -> int:
    """The peak of a dead child, as the kernel reported it to its parent.

    For a child that went on in a new interpreter, the kernel also counts what it had before: a copy of the parent, in
    which it may use pages that only the zygote has used. Then only what was measured while it lived counts.
    """
    inherited_bytes = max(map(linux.peak_bytes, (child.parent.pid, child.zygote.process.pid)))
    return 0 if not current.facts.preload and reported_bytes <= inherited_bytes else reported_bytes


def _measure(child: Child, current: Assignment, limit_bytes: int) -> Verdict | None:
    whole = child.survey.look(current.begun_at)
    (anonymous, shared), files = child.survey.resident_bytes(), child.survey.files_bytes()
    if whole:
        _note(current, anonymous + max(shared, files) - current.base_bytes)
    kept = current.base_bytes - (child.inherited_bytes or 0)
    if child.survey.most_bytes() - current.base_bytes > limit_bytes:
        if (own := _own_bytes(child)) is not None and (used := own - kept) > limit_bytes:
            _note(current, used)
            error = f"the job's processes had {used:,} bytes, over the limit of {limit_bytes:,}"
            return Verdict(Outcome.OUT_OF_MEMORY, error)
    elif kept > limit_bytes and not child.retiring:
        child.retiring = (_own_bytes(child) or 0) > limit_bytes
    return None


def _note(current: Assignment, used_bytes: int) -> None:
    current.peak_bytes = max(current.peak_bytes, used_bytes)
    current.series = current.series or MemorySeries(STEP_S)
    current.series.note(time.monotonic() - current.started, used_bytes)


def _sample(child: Child, current: Assignment) -> None:
    """Note the memory of a job without a limit now and then, once it has run for a while."""
    at_s = time.monotonic() - current.started
    if at_s < SAMPLE_AFTER_S:
        return
    current.series = current.series or MemorySeries(SAMPLE_S)
    if (child.survey.under_way or current.series.wants(at_s)) and child.survey.look():
        current.series.note(at_s, sum(child.survey.resident_bytes()))


def enforce_idle(child: Child, limit_bytes: int) -> None:
    """Kill an idle warm child that holds more memory than its jobs may use."""
    if child.inherited_bytes is None:
        return
    child.survey.look(child.born_at)
    most = child.survey.most_bytes() - child.inherited_bytes
    if most > limit_bytes and (kept := _own_bytes(child) or 0) > limit_bytes:
        text = "child %d of %s keeps %s bytes of its earlier jobs, over their limit of %s: it is replaced"
        log.warning(text, child.pid, child.task, f"{kept:,}", f"{limit_bytes:,}")
        child.retiring = True
        child.signal(signal.SIGKILL)


def used_bytes(child: Child, limit_bytes: int) -> int:
    """How much a shared child has beyond what it inherited; exactly, if it may be over the limit."""
    child.survey.look(child.born_at)
    most = child.survey.most_bytes() - (child.inherited_bytes or 0)
    own = _own_bytes(child) if most > limit_bytes // 2 else None
    return most if own is None else own


def parked_bytes_at_most(child: Child) -> int:
    """How much a parked child has, with what it shares with its parent."""
    child.survey.look(child.parked.begun_at if child.parked else 0.0)
    return child.survey.most_bytes()


def parked_bytes(child: Child) -> int:
    """How much a parked child has beyond that; 0 until it is known. It is weighed again only if it has changed."""
    at_most = child.survey.most_bytes()
    if child.parked and (child.weighed is None or abs(at_most - child.weighed[0]) > LITTLE_BYTES):
        own_bytes = child.survey.weigh(child.parent.pid if child.parked.facts.preload else None)
        if own_bytes is not None:
            child.weighed = at_most, own_bytes
    return 0 if child.weighed is None else child.weighed[1]


def _own_bytes(child: Child) -> int | None:
    """Its memory without its share of the pages that it inherited: that share is as large as its parent's."""
    return child.survey.weigh(child.parent.pid if child.inherited_bytes else None)


def in_group(child: Child, group: Group, current: Assignment, exit: Exited | None = None) -> Verdict | None:
    """By the counter of the child's own group: the kernel killed the child, or a process that the job started."""
    if group.kills() <= current.kills_before:
        return None
    reported_bytes = linux.peak_bytes(child.pid) if exit is None else exit.peak_memory_bytes
    if (limit_bytes := current.memory_bytes) is not None:
        # A job that was never measured has had no time to fill a page cache.
        used_bytes = limit_bytes if current.series is None else _most_bytes(child, current, reported_bytes)
        if group.was_full(used_bytes, limit_bytes):
            current.peak_bytes = max(current.peak_bytes, group.peak_bytes())
            return Verdict(Outcome.OUT_OF_MEMORY, f"{KILLED}; the job may have {limit_bytes:,} bytes")
    return _by_share(child, current, KILLED, reported_bytes)


def _most_bytes(child: Child, current: Assignment, reported_bytes: int) -> int:
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
    own_bytes = _most_bytes(child, current, reported_bytes)
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
        if now - self._looked_at > ACCOUNT_S:
            self._looked_at = now
            self._answered_for = max(self._answered_for, self._seen)
            self._seen = self._counted(groups)

    def unaccounted(self, groups: Groups | None) -> bool:
        """Whether the kernel has just killed a process that no job's death accounts for. A zygote's death does not:
        it may have another cause."""
        return self._counted(groups) > self._answered_for

    def _counted(self, groups: Groups | None) -> int:
        """How many processes the kernel has killed for lack of memory: of jobs, or without groups of the machine."""
        return _of_the_machine() - self._before if groups is None else groups.zygote.kills()

    def verdict(self, child: Child, current: Assignment, exit: Exited, groups: Groups | None) -> Verdict | None:
        """The verdict about a child that died of SIGKILL; None if the kernel did not send that."""
        if child.group is not None and (verdict := in_group(child, child.group, current, exit)):
            return verdict
        if not self.unaccounted(groups):
            return None
        self._answered_for += 1
        words, blame = (POSSIBLY, Outcome.CRASHED) if groups is None else (KILLED, Outcome.OUT_OF_MEMORY)
        return _by_share(child, current, words, exit.peak_memory_bytes, blame)


def _of_the_machine() -> int:
    """How many processes the kernel has killed for lack of memory since it started."""
    _, _, found = linux.read("/proc/vmstat").partition(b"\noom_kill ")
    return int(found.split(None, 1)[0]) if found else 0
