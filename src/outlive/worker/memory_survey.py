"""The memory of a child and of all processes below it, read a portion at a time: a job may start thousands.

Most children have a few processes, and one portion is all of them. A larger tree takes several portions; until they are
read, what was read before counts.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future
from collections import deque
from collections.abc import Iterator
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
WEIGH_SHARE = 20
"""Reading it may take a twentieth of a processor's time."""
FRESH_S = 0.5
"""What a thread has read is of no use after this time."""


class Survey:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._resident: dict[int, tuple[int, int]] = {}
        """Anonymous and shared memory by process."""
        self._processes: Iterator[None] | None = None
        self._since = 0.0
        self._files: dict[Inode, int] = {}
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
        """The size of the memfds and files in /dev/shm that these processes have changed since this moment.

        Each call reads a portion of their descriptors.
        """
        if since != self._since:
            self._since, self._files, self._descriptors, self._weighing = since, {}, None, None
        self._descriptors = self._descriptors or self._walk_files(list(self._resident), since)
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
        if len(self._resident) > AT_ONCE:
            try:
                read = asyncio.get_running_loop().run_in_executor
                self._weighing = read(None, self._exact_bytes, list(self._resident), dict(self._files), parent)
                return None
            except RuntimeError:  # No thread can be started.
                pass
        return self._exact_bytes(list(self._resident), self._files, parent)

    def _exact_bytes(self, pids: list[int], files: dict[Inode, int], parent: int | None) -> int:
        before = time.thread_time()
        exact = memory.proportional_bytes(pids) + memory.unmapped_bytes(pids, files)
        if parent is not None:
            exact -= memory.proportional_bytes([parent])
        self._weighed_at = time.monotonic()
        self._weigh_again = self._weighed_at + WEIGH_SHARE * (time.thread_time() - before)
        return exact

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

    def _walk_files(self, pids: list[int], since: float) -> Iterator[None]:
        found: dict[Inode, int] = {}
        for pid in pids:
            for path in memory.descriptors(pid):
                found |= memory.file_in_memory(path, since)
                yield
        self._files = found


def _ends(steps: Iterator[None], most: int) -> bool:
    """Take at most so many steps. True if fewer were left."""
    return sum(1 for _ in islice(steps, most)) < most
