"""What only the kernel can do for a process tree: subreapers, limits, strays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import time
from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36
KILL_TREE_S = 2.0
"""A process that the kernel does not let go, as one that waits for a dead disk, must not hold up its killer."""
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children, and not init's."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def be_chosen_first_when_memory_ends() -> None:
    """The kernel's OOM killer prefers this process to its supervisor."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def leave_no_core_dump() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def forget_peak() -> None:
    """The peak of this process' memory is what it has now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def children_of(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass
    return found


def descendants_of(pid: int) -> list[int]:
    """All that live below a process, nearest first; it changes while one looks."""
    found: list[int] = []
    level = children_of(pid)
    while level:
        found += level
        level = [grandchild for child in level for grandchild in children_of(child) if grandchild not in found]
    return found


def kill_tree(mark: str, *, spare: Collection[int] = ()) -> None:
    """Kill all below this process whose environment has the mark, until none is left; not what is below `spare`."""

    def marked() -> list[int]:
        kept = {pid for root in spare for pid in (root, *descendants_of(root))}
        return [pid for pid in descendants_of(os.getpid()) if pid not in kept and _has(pid, mark.encode())]

    deadline = time.monotonic() + KILL_TREE_S
    while (found := marked()) and time.monotonic() < deadline:
        for pid in found:
            kill(pid)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _has(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def hang_up(descriptor: int) -> None:
    """Cut a socket that somebody else owns: whoever waits for the other side hears its end at once."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(group: int, number: int = signal.SIGKILL) -> bool:
    """False if there is no such group."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
    return True
