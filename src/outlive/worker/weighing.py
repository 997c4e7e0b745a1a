"""Weighing children: what a job's processes take beyond what was there before it, and what an idle child has kept."""

from __future__ import annotations

import logging
import signal
import time

from outlive import kernel
from outlive.states import Outcome
from outlive.worker import memory, oom
from outlive.worker.children import Assignment, Child

ASK_SHARE = 20
"""A twentieth of the time may go into asking for a child's exact memory, and another into looking at its open files."""

_log = logging.getLogger("outlive.worker")


def weigh(child: Child, current: Assignment) -> None:
    """Kill a job that takes more than its limit, and let a child go after it that has kept more than that before."""
    if not current.facts.preload:
        if not _executed(child):
            return
        current.peak_bytes = max(current.peak_bytes, kernel.peak_bytes(child.pid))
    if child.group is not None and (verdict := oom.in_group(child.group, current)):
        current.verdict = verdict  # One of its processes is dead already, the others follow.
        child.signal(signal.SIGKILL)
    elif current.memory_bytes is not None:
        _weigh(child, current, current.memory_bytes)


def peak_bytes(child: Child, current: Assignment, told_bytes: int) -> int:
    """The peak of a dead child, by what its zygote was told when it reaped it: that of a child which went on in a new
    interpreter is the zygote's own, unless it had more after that. What was seen while it lived counts besides.
    """
    inherited = not current.facts.preload and told_bytes <= kernel.peak_bytes(child.nursery.process.pid)
    return 0 if inherited else told_bytes


def _weigh(child: Child, current: Assignment, limit_bytes: int) -> None:
    pids = memory.tree(child.pid)
    anonymous, shared = memory.resident_bytes(pids)
    files = _files(child, pids, current.begun_at)
    # A file that is mapped is in both, and pages may be counted twice: more than this it can't have.
    most = anonymous + shared + files - current.base_bytes
    current.peak_bytes = max(current.peak_bytes, anonymous + max(shared, files) - current.base_bytes)
    kept = current.base_bytes - (child.inherited_bytes or 0)
    if most > limit_bytes and _may_ask(child):
        used = _own_bytes(child, pids, current.begun_at) - kept
        if used > limit_bytes:
            current.peak_bytes = max(current.peak_bytes, used)
            current.verdict = (
                Outcome.OUT_OF_MEMORY,
                f"the job's processes had {used:,} bytes, over the limit of {limit_bytes:,}",
            )
            child.signal(signal.SIGKILL)
    elif kept > limit_bytes and not child.retiring and _may_ask(child):
        child.retiring = _own_bytes(child, pids, child.born_at) > limit_bytes


def weigh_idle(child: Child, limit_bytes: int) -> None:
    """Kill a warm child that has nothing to do and holds more than its jobs may: no job is harmed by it."""
    if child.inherited_bytes is None:
        return
    pids = memory.tree(child.pid)
    most = sum(memory.resident_bytes(pids)) + _files(child, pids, child.born_at) - child.inherited_bytes
    if most > limit_bytes and _may_ask(child) and (kept := _own_bytes(child, pids, child.born_at)) > limit_bytes:
        words = "child %d of %s has kept %s bytes from its jobs, over their limit of %s: it is replaced"
        _log.warning(words, child.pid, child.task, f"{kept:,}", f"{limit_bytes:,}")
        child.retiring = True
        child.signal(signal.SIGKILL)


def _executed(child: Child) -> bool:
    child.executed = child.executed or b"outlive.child.serving" in kernel.read(f"/proc/{child.pid}/cmdline")
    return child.executed


def _files(child: Child, pids: list[int], since: float) -> int:
    """What its open files take, from the last look if the next is not due yet."""
    asked = time.monotonic()
    if asked >= child.look_again:
        child.files_bytes = sum(memory.files_in_memory(pids, since).values())
        answered = time.monotonic()
        child.look_again = answered + ASK_SHARE * (answered - asked)
    return child.files_bytes


def _may_ask(child: Child) -> bool:
    """The kernel takes its time to tell the exact memory of a browser, so it is not asked all the time."""
    return time.monotonic() >= child.weigh_again


def _own_bytes(child: Child, pids: list[int], since: float) -> int:
    """What it has beyond its share of the zygote's pages, which is as large as the zygote's own. None counts twice."""
    asked = time.monotonic()
    own = memory.proportional_bytes(pids) + memory.unmapped_bytes(pids, memory.files_in_memory(pids, since))
    if child.inherited_bytes:
        own -= memory.proportional_bytes([child.nursery.process.pid])
    answered = time.monotonic()
    child.weigh_again = answered + ASK_SHARE * (answered - asked)
    return own
