"""Memory limits: how much a job's processes use beyond what its child had before, and how much an idle child keeps."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from outlive import kernel
from outlive.states import Outcome
from outlive.worker import oom
from outlive.worker.cgroups import Groups
from outlive.worker.children import Assignment, Child, Verdict
from outlive.worker.memory_series import MemorySeries

STEP_S = 0.05
"""The first steps of what is kept of the memory of a job with a limit: it is measured that often in any case."""
SAMPLE_AFTER_S = 1.0
SAMPLE_S = 0.5
"""The memory of a job without a limit is read this long after its beginning, and this often at first."""

_log = logging.getLogger("outlive.worker")


def give_cgroup(child: Child, current: Assignment, groups: Groups | None) -> None:
    """Move a child whose job has a memory limit into its own group. Most jobs end before that, and cost nothing."""
    if groups is None or child.group is not None or current.memory_bytes is None:
        return
    if (group := groups.new(child.number)) is not None:
        child.limit(current, group)
        try:
            asyncio.get_running_loop().run_in_executor(None, group.gather, child.pid)
            child.group = group
        except RuntimeError:  # No thread can be started.
            groups.remove(group)


def verdict(child: Child, current: Assignment) -> Verdict | None:
    """Whether a job uses more than its limit. Its child retires if earlier jobs left more than that."""
    if not current.facts.preload:
        if not _executed(child):
            return None
        current.peak_bytes = max(current.peak_bytes, kernel.peak_bytes(child.pid))
    if child.group is not None and (killed := oom.in_group(child, child.group, current)):
        return killed if kernel.peak_bytes(child.pid) else None  # The exit of a dead child has its peak.
    if current.memory_bytes is None:
        _sample(child, current)
        return None
    return _measure(child, current, current.memory_bytes)


def peak_bytes(child: Child, current: Assignment, reported_bytes: int) -> int:
    """The peak of a dead child, as the kernel reported it to its parent.

    For a child that went on in a new interpreter, the kernel also counts what it had before: a copy of the parent, in
    which it may use pages that only the zygote has used. Then only what was measured while it lived counts.
    """
    inherited_bytes = max(map(kernel.peak_bytes, (child.parent.pid, child.zygote.process.pid)))
    return 0 if not current.facts.preload and reported_bytes <= inherited_bytes else reported_bytes


def _measure(child: Child, current: Assignment, limit_bytes: int) -> Verdict | None:
    whole = child.survey.look()
    anonymous, shared = child.survey.resident_bytes()
    files = child.survey.files_bytes(current.begun_at)
    if whole:
        _note(current, anonymous + max(shared, files) - current.base_bytes)
    kept = current.base_bytes - (child.inherited_bytes or 0)
    # An upper bound: a mapped file is in both, and shared pages count twice.
    if anonymous + shared + files - current.base_bytes > limit_bytes:
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
    child.survey.look()
    most = sum(child.survey.resident_bytes()) + child.survey.files_bytes(child.born_at) - child.inherited_bytes
    if most > limit_bytes and (kept := _own_bytes(child) or 0) > limit_bytes:
        text = "child %d of %s keeps %s bytes of its earlier jobs, over their limit of %s: it is replaced"
        _log.warning(text, child.pid, child.task, f"{kept:,}", f"{limit_bytes:,}")
        child.retiring = True
        child.signal(signal.SIGKILL)


def _executed(child: Child) -> bool:
    child.executed = child.executed or b"outlive.child.serving" in kernel.read(f"/proc/{child.pid}/cmdline")
    return child.executed


def _own_bytes(child: Child) -> int | None:
    """Its memory without its share of the pages that it inherited: that share is as large as its parent's."""
    return child.survey.weigh(child.parent.pid if child.inherited_bytes else None)
