"""Linux calls and files of /proc that the process tree needs: subreapers, limits, orphans, signals."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import ctypes
import os
import signal
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from fcntl import ioctl
from io import FileIO
from sys import byteorder
from termios import FIONREAD
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_GET_DUMPABLE = 3
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PF_FORKNOEXEC = 0x40
_AT_FDCWD = -100
_STATX_BTIME, _STATX_BTIME_AT, _STATX_BYTES = 0x800, 80, 256
_SIGACTION_WORDS = 32
"""More than a `struct sigaction` has on any machine."""
_SIG_SETMASK = int(signal.SIG_SETMASK)
_libc = ctypes.CDLL(None, use_errno=True)
_prctl, _sigaction, _statx = _libc.prctl, _libc.sigaction, getattr(_libc, "statx", None)
exit_at_once: Callable[[int], NoReturn] = _libc._exit
"""Like `os._exit`, for which every fork would run the dynamic linker: this is linked before."""
_numbers = (ctypes.c_int * 2)()
_first, _second = ctypes.byref(_numbers), ctypes.byref(_numbers, ctypes.sizeof(ctypes.c_int))


def become_subreaper() -> None:
    """Make this process the parent of orphans among its descendants, instead of init."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def when_parent_dies(number: int) -> None:
    """Have the kernel send this signal to this process when its parent dies, but not to what the process has forked."""
    _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def handle_signal(number: int, action: int | Callable[[int, FrameType | None], None]) -> None:
    """Like `signal.signal`, which also looks up enums: every fork that calls it copies fifty more pages."""
    _signal.signal(number, action)


def unblock_signals() -> None:
    """Undo what a supervisor has blocked, in a process that it has started: the mask survives fork and exec."""
    _signal.pthread_sigmask(_SIG_SETMASK, ())


def process_settings() -> tuple[int, ...]:
    """What the two functions above have set, and whether the process may be traced and dumped."""
    _prctl(_PR_GET_PDEATHSIG, _first, 0, 0, 0)
    _prctl(_PR_GET_CHILD_SUBREAPER, _second, 0, 0, 0)
    return (_prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0), *_numbers)


def signal_actions(signals: Collection[int]) -> Callable[[], list[int | None]]:
    """Reads the kernel's handlers of some signals. Python knows only those that it has installed itself."""
    handlers = (ctypes.c_void_p * (_SIGACTION_WORDS * len(signals)))()
    bytes_each = ctypes.sizeof(ctypes.c_void_p) * _SIGACTION_WORDS
    places = [(number, ctypes.byref(handlers, n * bytes_each)) for n, number in enumerate(signals)]

    def read() -> list[int | None]:
        for number, place in places:
            _sigaction(number, None, place)
        return handlers[::_SIGACTION_WORDS]  # Each handler is the first word of its `struct sigaction`.

    return read


def oom_score_above(added: int) -> bytes:
    """A score by which the kernel's OOM killer prefers a process to this one, and to those without a score."""
    own = int(read("/proc/self/oom_score_adj") or 0)
    return b"%d" % min(1000, max(0, own) + added)


def prefer_for_oom_kill(score: bytes) -> None:
    """Have the kernel's OOM killer choose this process before others. 1000 counts like all memory of the machine."""
    try:  # Not `open` and contextlib.suppress: each fork would pay for the pages that they write to.
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, score)
        os.close(descriptor)
    except OSError:
        pass


def forget_peak() -> None:
    """Reset the peak of this process' memory to what it uses now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def release_free_memory() -> None:
    """Give memory that the C library keeps for later back to the kernel, where it can do so."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)


def peak_bytes(pid: int) -> int:
    """The most resident memory that a process has had since its exec or fork; 0 if it is gone."""
    _, _, rest = read(f"/proc/{pid}/status").partition(b"\nVmHWM:")
    return int(rest.split(None, 1)[0]) * 1024 if rest else 0


def children_of(pid: int) -> list[int]:
    """The direct children of all threads of a process."""
    return [int(word) for path in children_files(pid) for word in read(path).split()]


def children_files(pid: int) -> list[str]:
    """The files that name the direct children of a process: one for each of its threads."""
    return [f"{thread}/children" for thread in paths_in(f"/proc/{pid}/task")]


def paths_in(folder: str) -> list[str]:
    """What is in a folder of /proc; nothing if it is gone."""
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    return _stat(f"/proc/{pid}")[:1] == [b"T"]


def cpu_of_other_threads(pid: int) -> float:
    """How many seconds of CPU the threads of a process have used, without its first one."""
    threads = f"/proc/{pid}/task"
    stats = [_stat(path) for path in paths_in(threads) if path != f"{threads}/{pid}"]
    return sum(int(one[11]) + int(one[12]) for one in stats if one) / os.sysconf("SC_CLK_TCK")


def read(path: str) -> bytes:
    """The content of a file of /proc; empty if it is gone."""
    try:
        with FileIO(path) as file:
            return file.readall()
    except OSError:
        return b""


def pipe(flags: int = 0) -> tuple[FileIO, FileIO]:
    """Both ends of a pipe. Each is closed with its object at the latest."""
    read, write = os.pipe2(os.O_CLOEXEC | flags)
    return FileIO(read), FileIO(write, "w")


def unread_bytes(descriptor: int) -> int:
    number = bytearray(4)  # Python first asks for a buffer that can be written to: with `bytes`, it makes an exception.
    ioctl(descriptor, FIONREAD, number)
    return int.from_bytes(number, byteorder)


def descendants_of(pid: int) -> list[int]:
    """All processes below a process, nearest first. They may change while this reads them."""
    found: dict[int, None] = {}
    level = children_of(pid)
    while level:
        found |= dict.fromkeys(level)
        level = [grandchild for child in level for grandchild in children_of(child) if grandchild not in found]
    return list(found)


def lineage_of(pid: int) -> Iterator[int]:
    """A process and those above it, up to this one or the first of all. A zombie still has its parent."""
    while pid > 1 and pid != os.getpid():
        yield pid
        pid = int((_stat(f"/proc/{pid}") or (b"", b"0"))[1])


def reaped(pid: int) -> bool:
    """Reap a child if it is dead. True if it is gone, now or before."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def born_at(path: str) -> float | None:
    """When a file was made; None where the kernel does not record it."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx is None or _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0:
        return None
    (has,) = struct.unpack_from("I", answer)
    seconds, nanoseconds = struct.unpack_from("qI", answer, _STATX_BTIME_AT)
    return float(seconds + nanoseconds / 1e9) if has & _STATX_BTIME else None


def has_executed(pid: int) -> bool:
    """Whether a process runs a program of its own. A fork runs that of its parent."""
    words = _stat(f"/proc/{pid}")
    return bool(words) and not int(words[6]) & _PF_FORKNOEXEC


def _stat(process: str) -> list[bytes]:
    """The fields of a process or thread after its name, beginning with the state; empty if it is gone."""
    return read(f"{process}/stat").rpartition(b")")[2].split()


def sign_of_life(pid: int) -> str:
    """Identifies a process among all that ever have its pid: namespace, pid and start time."""
    return f"{_namespace_of(str(pid))}:{pid}:{_started(pid)}"


def _started(pid: int) -> int:
    """When a process started, in ticks since the machine booted; 0 if it does not exist, or is a zombie."""
    words = _stat(f"/proc/{pid}")
    return int(words[19]) if words and words[0] != b"Z" else 0


def lives(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return bool(_started(pid))


def kill_orphans(variable: str) -> list[int]:
    """Kill the processes on this machine whose environment has, as `variable`, the sign of a process that is dead.

    Processes of other pid namespaces are left alone: their pids mean something else.
    """
    ours = _namespace_of("self")
    killed = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and _namespace_of(name) == ours:
            _, found, after = (b"\0" + read(f"/proc/{name}/environ")).partition(f"\0{variable}=".encode())
            if found and is_dead(after.partition(b"\0")[0].decode(errors="replace")):
                kill(int(name))
                killed.append(int(name))
    return killed


def is_dead(sign: str) -> bool:
    """Whether the process with this sign is gone; False for another pid namespace, which this process can't see."""
    try:
        namespace, pid, started = sign.split(":")
        return namespace == _namespace_of("self") and _started(int(pid)) != int(started)
    except ValueError:
        return False  # No supervisor has written this: leave the process alone.


def _namespace_of(pid: str) -> str:
    try:
        return str(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        return ""


def hang_up(descriptor: int) -> None:
    """Shut down a socket that another object owns: a read that waits on it ends at once."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal. False if that is not permitted, as for another user's process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def kill_group(group: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to a process group. False if there is no such group."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
