"""With `recycle_after="clean"`, a child runs another job only if it still is as it was before its first one.

docs/explanation/reuse.md lists what is compared. Every job pays for it, so the files of /proc stay open. Only plain
values are compared: objects of the job may have methods that lie.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]
import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from fcntl import F_GETFL, fcntl
from operator import itemgetter
from os import fstat
from resource import getrlimit

from outlive import linux

MAX_GROWTH_KB = 8 * 1024  # How much more memory than before its first job a child may have.
THREAD_EXIT_S = 0.02  # How long a thread that the job has joined may take to be gone.
PAUSE_S = 0.0005
MEMORY = "memory"
STDOUT = 1

_UNCHANGED = (
    *("Threads", "Name", "Umask", "Uid", "Gid", "Groups", "VmLck", "RssShmem", "THP_enabled", "SigBlk", "SigIgn"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"),
    *("Cpus_allowed_list", "Mems_allowed_list"),
)
"""The lines of /proc/self/status that a job must not change."""
_OWN_OF_LIBC = 0b11 << 31  # Signals 32 and 33, which the C library handles from the start of the first thread.
_DESCRIPTORS = "/proc/self/fd"
_LIMITS = {number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV)
"""Signals whose handlers native code is likely to replace without telling Python."""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Origin:
    """A child's state before its first job."""

    def __init__(self, own: Collection[int]) -> None:
        """The descriptors of outlive's `own` are only counted: a job that replaces one of them cuts itself off."""
        self._status = _open("/proc/self/status")
        self._children = _open(f"/proc/self/task/{os.getpid()}/children")
        self._oom_score = _open("/proc/self/oom_score_adj")
        self._descriptors = _open(_DESCRIPTORS)
        own = {*own, self._status, self._children, self._oom_score, self._descriptors}
        open_ones = [int(name) for name in os.listdir(_DESCRIPTORS) if os.path.exists(f"{_DESCRIPTORS}/{name}")]
        self._numbers = [number for number in open_ones if number not in own]
        self._streams = sys.stdin, sys.stdout, sys.stderr
        status = self._read_status()
        self._at = {line.partition(b":")[0].decode(): n for n, line in enumerate(status)}
        self._unchanged = itemgetter(*(self._at[name] for name in _UNCHANGED if name in self._at))
        self._caught_before = self._caught_in(status)
        self._caught = [number for number in range(1, signal.NSIG) if self._caught_before >> (number - 1) & 1]
        actions = linux.signal_actions(_WATCHED)
        self._held = [*map(_signal.getsignal, self._caught), sys.gettrace(), sys.getprofile()]
        """These objects stay, so no other one gets their ids."""
        environ, variables = os.environ, dict(os.environ._data)  # type: ignore[attr-defined]
        looks: dict[str, Callable[[], object]] = {
            "descriptors": self._describe_descriptors,
            "child processes": lambda: os.pread(self._children, 100, 0),
            "working directory": _working_directory,
            "environment": lambda: os.environ is environ and environ._data == variables,  # type: ignore[attr-defined]
            "signal handlers": lambda: (list(map(id, map(_signal.getsignal, self._caught))), actions()),
            "timers": lambda: list(map(signal.getitimer, _TIMERS)),
            "limits": lambda: list(map(getrlimit, _LIMITS)),
            "priority": self._describe_priority,
            "standard streams": self._describe_streams,
            "interpreter settings": _describe_interpreter,
        }
        self._looks = [(name, look, look()) for name, look in looks.items()]
        self._status_before = self._unchanged(status)
        self._memory_before_kb = self._memory_kb(status)

    def change(self) -> str | None:
        """What is different now, or None. Memory that the job has freed is given back first, if that matters."""
        changed = self._compare()
        if changed == MEMORY:
            gc.collect()
            linux.release_free_memory()
            changed = self._compare()
        return changed

    def _compare(self) -> str | None:
        name = ""
        try:
            for name, look, before in self._looks:
                if look() != before:
                    return name
            name = "descriptors"
            status = self._read_status_without_threads()
        except Exception:  # The job has closed what is looked at.
            return name
        if (unchanged := self._unchanged(status)) != self._status_before:
            pairs = zip(unchanged, self._status_before, strict=True)
            return next(str(line.partition(b":")[0], "ascii") for line, before in pairs if line != before)
        if self._caught_in(status) != self._caught_before:
            return "signal handlers"
        return MEMORY if self._memory_kb(status) - self._memory_before_kb > MAX_GROWTH_KB else None

    def _read_status_without_threads(self) -> list[bytes]:
        """The status, as soon as no other thread is there: a thread that was joined may take a moment to be gone."""
        status, deadline = self._read_status(), 0.0
        threads = self._at["Threads"]
        while status[threads] != self._status_before[0] and (not deadline or time.monotonic() < deadline):
            deadline = deadline or time.monotonic() + THREAD_EXIT_S
            time.sleep(PAUSE_S)
            status = self._read_status()
        return status

    def _read_status(self) -> list[bytes]:
        return os.pread(self._status, 65536, 0).split(b"\n")

    def _caught_in(self, status: list[bytes]) -> int:
        """The signals that have handlers, as a mask."""
        return int(status[self._at["SigCgt"]].split()[1], 16) & ~_OWN_OF_LIBC

    def _memory_kb(self, status: list[bytes]) -> int:
        """Its anonymous memory. Pages of files are not its own, and are there from its first use of them."""
        return sum(int(status[self._at[name]].split()[1]) for name in ("RssAnon", "VmSwap"))

    def _describe_descriptors(self) -> object:
        """How many there are, and what is behind those that were there before."""
        # Since Linux 6.2 their number is the size of the directory.
        count = fstat(self._descriptors).st_size or len(os.listdir(_DESCRIPTORS))
        return count, fcntl(STDOUT, F_GETFL), [fstat(number).st_ino for number in self._numbers]

    def _describe_priority(self) -> object:
        oom_score = os.pread(self._oom_score, 100, 0)
        return os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), oom_score, linux.process_settings()

    def _describe_streams(self) -> object:
        closed = [getattr(one, "closed", None) for one in self._streams]
        return id(sys.stdin), id(sys.stdout), id(sys.stderr), closed


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # It is gone, and was perhaps gone before the first job.
        return None


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _describe_interpreter() -> object:
    tracing = id(sys.gettrace()), id(sys.getprofile()), sys.getrecursionlimit(), sys.getswitchinterval()
    place = _locale.setlocale(_locale.LC_ALL, None), time.tzname, time.timezone, time.altzone
    return tracing, place, gc.isenabled(), gc.get_threshold(), socket.getdefaulttimeout()
