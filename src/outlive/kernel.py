"""What only the kernel can do for a process tree: subreapers, limits, strays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children, and not init's."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """This process is killed when its parent dies: for a child whose zygote and supervisor are killed at once.

    What it has forked is not, so this is only one of several ways.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


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


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident since it was executed, or forked; 0 if it is gone."""
    _, _, found = read(f"/proc/{pid}/status").partition(b"\nVmHWM:")
    return int(found.split(None, 1)[0]) * 1024 if found else 0


def children_of(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in read(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        pass
    return found


def read(path: str) -> bytes:
    """A file of /proc, without what Python's files cost: these are read twenty times a second. Empty if it is gone."""
    parts = []
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(descriptor, 65536):
                parts.append(part)
        finally:
            os.close(descriptor)
    return b"".join(parts)


def descendants_of(pid: int) -> list[int]:
    """All that live below a process, nearest first; it changes while one looks."""
    found: list[int] = []
    level = children_of(pid)
    while level:
        found += level
        level = [grandchild for child in level for grandchild in children_of(child) if grandchild not in found]
    return found


def reaped(pid: int) -> bool:
    """Take leave of a child if it is dead; True if it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def has_variable(pid: int, mark: bytes) -> bool:
    """Whether the environment that a process began with has this entry."""
    return mark in read(f"/proc/{pid}/environ").split(b"\0")


def sign_of_life(pid: int) -> str:
    """What tells this process from all others that had or will have its number: its namespace and its start."""
    return f"{_namespace_of(str(pid))}:{pid}:{_started(pid)}"


def _started(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0 if there is none, or a dead one."""
    words = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(words[19]) if len(words) > 19 and words[0] != b"Z" else 0


def kill_orphans(variable: str) -> list[int]:
    """Kill those on this machine whose environment names, under `variable`, the sign of a process that is dead.

    Only those of our own namespace: what another calls by the same number is not ours to judge.
    """
    ours = _namespace_of("self")
    killed = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and _namespace_of(name) == ours:
            for entry in read(f"/proc/{name}/environ").decode(errors="replace").split("\0"):
                if entry.startswith(f"{variable}={ours}:") and not _lives(entry.partition("=")[2]):
                    kill(int(name))
                    killed.append(int(name))
    return killed


def is_dead(sign: str) -> bool:
    """Whether the process is gone that had this sign; False for one of another namespace, which can't be known here."""
    return sign.startswith(f"{_namespace_of('self')}:") and not _lives(sign)


def _lives(sign: str) -> bool:
    _, pid, started = sign.split(":")
    return _started(int(pid)) == int(started)


def _namespace_of(pid: str) -> str:
    try:
        return str(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        return ""


def hang_up(descriptor: int) -> None:
    """Cut a socket that somebody else owns: whoever waits for the other side hears its end at once."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """False if this process may not, as for one that another user owns."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.kill(pid, number)
        except PermissionError:
            return False
    return True


def kill_group(group: int, number: int = signal.SIGKILL) -> bool:
    """False if there is no such group."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
    return True
