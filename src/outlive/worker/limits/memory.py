"""How much memory a job's processes have, and how that changes: anonymous, shared, and files that live in memory.

It is read from /proc, which does not show all: only a cgroup counts the pages of a memfd whose descriptor is closed,
files left in /dev/shm, page cache, and kernel memory.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from asyncio import Future
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from outlive import linux
from outlive.model import MemoryCourse
from outlive.states import Outcome

STEPS = 64
"""How many processes are read at once: each takes some 50 µs."""
STEP = 8
"""This many threads or open files of a process take as long as a process."""
AT_ONCE = 16
"""The exact memory of more processes than these is read by a thread: each takes 0.3 ms or more."""
LITTLE_BYTES = 1_000_000
"""Less shared memory than this is left out of the exact memory. Finding its owner takes a thread 10 µs per mapping."""
WEIGH_SHARE = 20
"""Reading it may take a twentieth of a processor's time."""
FRESH_S = 0.5
"""What a thread has read is of no use after this time."""
CLOCK_TICK_S = 0.01
"""The kernel stamps files with a clock of this resolution."""
MOST_POINTS = 60
"""How many points a series has at most."""
LONG_S = 5.0
"""The series of attempts that succeed sooner is not kept."""

_RESIDENT = re.compile(rb"^RssAnon:\s+(\d+) kB$.*^RssShmem:\s+(\d+) kB$", re.DOTALL | re.MULTILINE)
_PROPORTIONAL = re.compile(rb"^Pss_Anon:\s+(\d+) kB$.*^Pss_Shmem:\s+(\d+) kB$", re.DOTALL | re.MULTILINE)

Inode = tuple[int, int]
"""Device and inode number: they identify a file."""
Sizes = dict[Inode, int]


def resident_bytes(pid: int) -> tuple[int, int]:
    """Anonymous and shared resident memory of a process; zeros if it is gone."""
    return _fields(f"/proc/{pid}/status", _RESIDENT)


def proportional_bytes(pids: Collection[int], *, shared: bool = True) -> int:
    """Both together, with each page of these processes counted once. The kernel is slow to answer."""
    each = [_fields(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL) for pid in pids]
    return sum(anonymous + (in_files if shared else 0) for anonymous, in_files in each)


def proportional_bytes_below(pid: int) -> int:
    """The same for a process and all of its descendants."""
    return proportional_bytes([pid, *linux.descendants_of(pid)])


def _fields(path: str, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    """Two fields of a file with lines like `Name:  12 kB`, in bytes; zeros if the file is gone."""
    found = pattern.search(linux.read(path))
    return (int(found[1]) * 1024, int(found[2]) * 1024) if found else (0, 0)


def _file_in_memory(path: str) -> tuple[Inode, int, float] | None:
    """The file behind a descriptor, its size and when it was made, if it lives in memory and is open for writing."""
    try:
        if os.readlink(path).startswith(("/memfd:", "/dev/shm/")) and os.lstat(path).st_mode & 0o200:
            file, born_at = os.stat(path), linux.born_at(path)
            return (file.st_dev, file.st_ino), file.st_blocks * 512, math.inf if born_at is None else born_at
    except OSError:
        pass
    return None


@dataclass(slots=True)
class Mapping:
    """A memfd or a file in /dev/shm that a process has mapped, in one part or in many."""

    path: str
    """Where the kernel shows its first part, to root only."""
    name: str
    inode: Inode
    writable: bool = False
    proportional_bytes: int = 0

    def is_older(self, than: float) -> bool:
        """Whether it is known to have been made before this moment."""
        born_at = linux.born_at(self.path)
        if born_at is None:
            try:
                file = os.stat(self.name)
            except OSError:
                return False
            born_at = linux.born_at(self.name) if (file.st_dev, file.st_ino) == self.inode else None
        return born_at is not None and born_at < than - CLOCK_TICK_S


def mappings(pid: int) -> Collection[Mapping]:
    """What a process has mapped of files that live in memory. The kernel is slow to answer.

    A process may have 65,000 mappings, with 24 lines about each: a regular expression would take seconds.
    """
    smaps = linux.read(f"/proc/{pid}/smaps")
    found: dict[Inode, Mapping] = {}
    for kind in (b"/memfd:", b"/dev/shm/"):
        at = 0
        while (at := smaps.find(b" " + kind, at)) >= 0 and (size_at := smaps.find(b"\nPss:", at)) >= 0:
            line = smaps[smaps.rfind(b"\n", 0, at) + 1 : smaps.find(b"\n", at)]
            place, rights, _, device, number, name = line.split(None, 5)
            at = size_at
            if name.startswith(kind):
                major, minor = device.split(b":")
                inode = os.makedev(int(major, 16), int(minor, 16)), int(number)
                path = f"/proc/{pid}/map_files/{place.decode()}"
                one = found.setdefault(inode, Mapping(path, os.fsdecode(name), inode))
                one.proportional_bytes += int(smaps[size_at + 5 : smaps.find(b"kB", size_at)]) * 1024
                one.writable |= rights[1:2] == b"w" and rights[3:4] == b"s"
    return found.values()


class Survey:
    """The memory of a child and of all processes below it, read a portion at a time: a job may start thousands. Until
    all portions are read, what was read before counts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._walking: Iterator[None] | None = None
        self._since = self._walked_at = 0.0
        self._resident: dict[int, tuple[int, int]] = {}
        """Anonymous and shared memory by process."""
        self._files: Sizes = {}
        """How much these files have grown below these processes."""
        self._before: Sizes = {}
        """Their sizes when they were first seen here; 0 for those that these processes have made."""
        self._weighing: Future[int] | None = None
        self._weighed_at = self._weigh_again = 0.0

    @property
    def under_way(self) -> bool:
        """Whether some processes are still to be read."""
        return self._walking is not None

    def look(self, since: float = 0.0) -> bool:
        """Read the next portion of the processes, and of their files if these count since a moment. True: it was the
        last one."""
        if since != self._since:
            self._since = self._walked_at = since
            self._files, self._before, self._walking, self._weighing = {}, {}, None, None
        self._walking = self._walking or self._walk()
        if sum(1 for _ in islice(self._walking, STEPS)) < STEPS:
            self._walking = None
        return not self.under_way

    def resident_bytes(self) -> tuple[int, int]:
        """Anonymous and shared resident memory. A page of several processes is counted several times."""
        return sum(one for one, _ in self._resident.values()), sum(one for _, one in self._resident.values())

    def most_bytes(self) -> int:
        """An upper bound: a mapped file is in both figures, and shared pages count several times."""
        return sum(self.resident_bytes()) + self.files_bytes()

    def files_bytes(self) -> int:
        """By how much the memfds and files in /dev/shm that these processes may write to have grown."""
        return sum(self._files.values())

    def weigh(self, parent: int | None) -> int | None:
        """The memory of all these processes, with each page counted once and the parent's share of it left out.

        None if that is not known yet: it takes long, so it is not read all the time.
        """
        if self._weighing is not None:
            if not self._weighing.done():
                return None
            weighed, self._weighing = self._weighing.result(), None
            if time.monotonic() - self._weighed_at < FRESH_S:
                return weighed
        if time.monotonic() < self._weigh_again:
            return None
        shared = self.resident_bytes()[1] > LITTLE_BYTES
        # A thread may read it, so it gets copies.
        copies = list(self._resident), parent, dict(self._files), dict(self._before)
        weigh = partial(self._exact_bytes, *copies, shared=shared)
        if shared or len(self._resident) > AT_ONCE:
            try:
                self._weighing = asyncio.get_running_loop().run_in_executor(None, weigh)
                return None
            except RuntimeError:  # No thread can be started.
                pass
        return weigh()

    def _exact_bytes(self, pids: list[int], parent: int | None, files: Sizes, before: Sizes, *, shared: bool) -> int:
        """The share of others is read before and after, and the larger one counts: they may begin or end to use the
        same pages meanwhile, and on a busy machine much later."""
        began = time.thread_time()
        theirs = {inode: size > 0 for inode, size in before.items()}
        others_bytes, _ = self._beside(pids, parent, files, theirs, shared=shared)
        exact = proportional_bytes(pids, shared=shared)
        others_now_bytes, unmapped_bytes = self._beside(pids, parent, files, theirs, shared=shared)
        exact += unmapped_bytes - max(others_bytes, others_now_bytes)
        self._weighed_at = time.monotonic()
        self._weigh_again = self._weighed_at + WEIGH_SHARE * (time.thread_time() - began)
        return exact

    def _beside(
        self, pids: list[int], parent: int | None, files: Sizes, theirs: dict[Inode, bool], *, shared: bool
    ) -> tuple[int, int]:
        """How much of the memory of these processes is that of others: what they inherited from the parent, and mapped
        pages of files of others. And what their own files have beside the pages that are mapped.

        `theirs` keeps which files are those of others: older than the job, or there when the job opened them, or such
        as it may only read.
        """
        inherited_bytes = proportional_bytes([parent], shared=shared) if parent is not None else 0
        if not shared:
            return inherited_bytes, sum(files.values())
        found = [one for pid in pids for one in mappings(pid)]
        inherited = {one.inode for one in mappings(parent)} if found and parent is not None else set()
        written = {one.inode for one in found if one.writable}
        mapped: Counter[Inode] = Counter()
        foreign = 0
        for one in found:
            if one.inode not in theirs:
                theirs[one.inode] = one.inode not in written or one.is_older(self._since)
            if theirs[one.inode] and one.inode not in inherited:
                foreign += one.proportional_bytes
            else:
                mapped[one.inode] += one.proportional_bytes
        return inherited_bytes + foreign, sum(max(0, size - mapped[inode]) for inode, size in files.items())

    def _walk(self) -> Iterator[None]:
        """Read every process, and then forget those that are gone."""
        found: dict[int, tuple[int, int]] = {}
        files: Sizes = {}
        todo, began_at = deque([self._pid]), time.time()
        while todo:
            pid = todo.popleft()
            if pid in found:
                continue
            found[pid] = self._resident[pid] = resident_bytes(pid)
            yield
            for n, path in enumerate(linux.children_files(pid), 1):
                todo.extend(map(int, linux.read(path).split()))
                if n % STEP == 0:
                    yield
            for n, path in enumerate(linux.paths_in(f"/proc/{pid}/fd") if self._since else (), 1):
                self._read_file(path, files)
                if n % STEP == 0:
                    yield
        self._resident, self._files, self._walked_at = found, files, began_at

    def _read_file(self, path: str, files: Sizes) -> None:
        """A file that is older than the last walk, and was not there then, is another process'."""
        if (file := _file_in_memory(path)) is not None:
            inode, size_bytes, born_at = file
            older = born_at < self._walked_at - CLOCK_TICK_S
            files[inode] = max(0, size_bytes - self._before.setdefault(inode, size_bytes if older else 0))


class MemorySeries:
    """The most that was measured in each step of time. When it is full, its steps become twice as long."""

    def __init__(self, step_s: float) -> None:
        self._step_s, self._ends_s = step_s, 0.0
        self._times_s: list[float] = []
        self._used_bytes: list[int] = []

    def wants(self, at_s: float) -> bool:
        return at_s >= self._ends_s

    def note(self, at_s: float, used_bytes: int) -> None:
        if not self.wants(at_s):
            self._used_bytes[-1] = max(self._used_bytes[-1], used_bytes)
            return
        if len(self._times_s) == MOST_POINTS:
            self._times_s = self._times_s[::2]
            self._used_bytes = [*map(max, self._used_bytes[::2], self._used_bytes[1::2])]
            self._step_s *= 2
        self._times_s.append(at_s)
        self._used_bytes.append(used_bytes)
        self._ends_s = at_s + self._step_s

    def most_bytes(self) -> int:
        return max(self._used_bytes, default=0)

    def course(self, limit_bytes: int | None) -> MemoryCourse | None:
        """What was measured so far; None if there is nothing to see in it."""
        if len(self._times_s) < 2:
            return None
        times_s = [round(at_s, 2) for at_s in self._times_s]
        return MemoryCourse(limit_bytes, times_s, [max(0, used) for used in self._used_bytes])

    def kept(self, outcome: Outcome, took_s: float, limit_bytes: int | None) -> bytes | None:
        """What is stored with an attempt that ended so."""
        if outcome is Outcome.SUCCEEDED and took_s < LONG_S:
            return None
        course = self.course(limit_bytes)
        return None if course is None else msgspec.json.encode(course)
