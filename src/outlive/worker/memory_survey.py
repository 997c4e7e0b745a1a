"""The memory of a child and of all processes below it, read a portion at a time: a job may start thousands.

Most children have a few processes, and one portion is all of them. A larger tree takes several portions; until they are
read, what was read before counts.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from itertools import islice

from outlive import kernel
from outlive.worker import memory
from outlive.worker.memory import Inode

PROCESSES = 64
"""How many processes a portion has: each takes some 50 µs."""
THREADS = 8
"""So many threads of a process take as long as a process."""
DESCRIPTORS = 256
"""How many open files a portion has: each takes some 8 µs."""
AT_ONCE = 16
"""The exact memory of more processes than these is read by a thread: each takes 0.3 ms or more."""
LITTLE_BYTES = 1_000_000
"""So much shared memory is left out of the exact memory. Finding out whose it is takes a thread 10 µs per mapping."""
WEIGH_SHARE = 20
"""Reading it may take a twentieth of a processor's time."""
FRESH_S = 0.5
"""What a thread has read is of no use after this time."""


Sizes = dict[Inode, int]


class Survey:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._resident: dict[int, tuple[int, int]] = {}
        """Anonymous and shared memory by process."""
        self._processes: Iterator[None] | None = None
        self._since = self._walked_at = 0.0
        self._files: Sizes = {}
        """How much these files have grown below these processes."""
        self._before: Sizes = {}
        """Their sizes when they were first seen here; 0 for those that these processes have made."""
        self._descriptors: Iterator[None] | None = None
        self._weighing: Future[int] | None = None
        self._weighed_at = self._weigh_again = 0.0

    @property
    def under_way(self) -> bool:
        """Whether some processes are still to be read."""
        return self._processes is not None

    def look(self) -> bool:
        """Read the next portion of the processes. True if all are read now."""
        self._processes = self._processes or self._walk()
        if _ends(self._processes, PROCESSES):
            self._processes = None
        return not self.under_way

    def resident_bytes(self) -> tuple[int, int]:
        """Anonymous and shared resident memory. A page of several processes is counted several times."""
        return sum(one for one, _ in self._resident.values()), sum(one for _, one in self._resident.values())

    def files_bytes(self, since: float) -> int:
        """By how much the memfds and files in /dev/shm that these processes may write to have grown since this moment.

        Each call reads a portion of their descriptors.
        """
        if since != self._since:
            self._since = self._walked_at = since
            self._files, self._before, self._descriptors, self._weighing = {}, {}, None, None
        self._descriptors = self._descriptors or self._walk_files(list(self._resident))
        if _ends(self._descriptors, DESCRIPTORS):
            self._descriptors = None
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
        weigh = partial(self._exact_bytes, list(self._resident), parent, *self._copies(), shared=shared)
        if shared or len(self._resident) > AT_ONCE:
            try:
                self._weighing = asyncio.get_running_loop().run_in_executor(None, weigh)
                return None
            except RuntimeError:  # No thread can be started.
                pass
        return weigh()

    def _copies(self) -> tuple[Sizes, Sizes]:
        """What a thread may read."""
        return dict(self._files), dict(self._before)

    def _exact_bytes(self, pids: list[int], parent: int | None, files: Sizes, before: Sizes, *, shared: bool) -> int:
        began = time.thread_time()
        exact = memory.proportional_bytes(pids, shared=shared)
        exact += self._files_beside(pids, parent, files, before) if shared else sum(files.values())
        if parent is not None:
            exact -= memory.proportional_bytes([parent], shared=shared)
        self._weighed_at = time.monotonic()
        self._weigh_again = self._weighed_at + WEIGH_SHARE * (time.thread_time() - began)
        return exact

    def _files_beside(self, pids: list[int], parent: int | None, files: Sizes, before: Sizes) -> int:
        """What these files have beside the pages that are mapped, less the mapped pages of files of other processes.

        A file belongs to another process if it is older than the job, or if it was there when the job opened it, or if
        the job may only read it.
        """
        found = [one for pid in pids for one in memory.mappings(pid)]
        inherited = {one.inode for one in memory.mappings(parent)} if found and parent is not None else set()
        written = {one.inode for one in found if one.writable}.union(before)
        of_others = {inode: size > 0 for inode, size in before.items()}
        mapped: Counter[Inode] = Counter()
        foreign = 0
        for one in found:
            if one.inode not in of_others:
                of_others[one.inode] = one.inode not in written or one.is_older(self._since)
            if of_others[one.inode] and one.inode not in inherited:
                foreign += one.proportional_bytes
            else:
                mapped[one.inode] += one.proportional_bytes
        return sum(max(0, size - mapped[inode]) for inode, size in files.items()) - foreign

    def _walk(self) -> Iterator[None]:
        """Read every process, and then forget those that are gone."""
        found: dict[int, tuple[int, int]] = {}
        todo = deque([self._pid])
        while todo:
            pid = todo.popleft()
            if pid in found:
                continue
            found[pid] = self._resident[pid] = memory.resident_bytes(pid)
            yield
            for n, path in enumerate(kernel.children_files(pid), 1):
                todo.extend(map(int, kernel.read(path).split()))
                if n % THREADS == 0:
                    yield
        self._resident = found

    def _walk_files(self, pids: list[int]) -> Iterator[None]:
        """Read every descriptor. A file that is older than the last time, and was not there then, is another's."""
        found: Sizes = {}
        began_at = time.time()
        for pid in pids:
            for path in memory.descriptors(pid):
                if (file := memory.file_in_memory(path)) is not None:
                    older = file.born_at < self._walked_at - memory.CLOCK_TICK_S
                    before = self._before.setdefault(file.inode, file.size_bytes if older else 0)
                    found[file.inode] = max(0, file.size_bytes - before)
                yield
        self._files, self._walked_at = found, began_at


def _ends(steps: Iterator[None], most: int) -> bool:
    """Take at most so many steps. True if fewer were left."""
    return sum(1 for _ in islice(steps, most)) < most
