"""Warm children: how many jobs they may have ahead, and which of them has the fewest while jobs are handed out."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection

from outlive.worker.children import AHEAD_S, OVER_S, Assignment, Child

DAY_S = 86400.0
MAX_AHEAD = 800
"""How many jobs a child has at most."""


class Pace:
    """How long the jobs of each task take: the less, the more of them a child may have."""

    def __init__(self) -> None:
        self._average_s: dict[str, float] = {}

    def note(self, task: str, took_s: float, elapsed_s: float, *, fresh: bool = False) -> float:
        """How long a job took: what its child says, unless that makes no sense, or plainly more time has passed.

        A job of a fresh task has its slot for all the time that has passed, with its process.
        """
        if elapsed_s > OVER_S or not 0.0 <= took_s < DAY_S:
            took_s = elapsed_s
        occupied_s = elapsed_s if fresh else took_s
        before_s = self._average_s.get(task, occupied_s)
        self._average_s[task] = before_s + (occupied_s - before_s) * 0.1
        return took_s

    def ahead(self, task: str) -> int:
        """As many jobs as take about AHEAD_S; 1 until it is known how long they take."""
        return max(1, min(MAX_AHEAD, int(AHEAD_S / max(self._average_s.get(task, AHEAD_S), 1e-6))))


class _Load:
    """A child's jobs, and those that it is about to be given."""

    __slots__ = ("added", "child", "length")

    def __init__(self, child: Child) -> None:
        self.child, self.length = child, len(child.given)
        self.added: list[Assignment] = []

    def takes_more(self, max_jobs: int) -> bool:
        return self.length < MAX_AHEAD and self.child.served + len(self.added) < max_jobs


class WarmChildren:
    def __init__(self, children: Collection[Child], share: Callable[[str], int]) -> None:
        self._children, self._share, self._now = children, share, time.monotonic()
        self.full: set[str] = set()
        """Tasks whose children take no more jobs."""
        self._loads: list[_Load] = []
        self._heaps: dict[str, list[tuple[int, int, _Load]]] = {}
        """The loads of each task's children, the smallest first, in shares. Those that are full are left out."""

    def fewest(self, one: Assignment) -> int | None:
        """The fewest shares that a child has that can take this job; None if it must wait for another child."""
        max_jobs = one.facts.max_jobs
        if max_jobs == 1 or one.job.losses:
            return None
        heap = self._heap(one.job.task)
        while heap and not heap[0][2].takes_more(max_jobs):
            heapq.heappop(heap)
        if not heap:
            self.full.add(one.job.task)
            return None
        return heap[0][0]

    def add(self, one: Assignment) -> bool:
        """Add a job to the child of its task that has the fewest shares; True if that child was idle."""
        heap = self._heaps[one.job.task]
        _, number, load = heap[0]
        load.added.append(one)
        load.length += 1
        heapq.heapreplace(heap, (load.length // self._share(one.job.task), number, load))
        return load.length == 1

    def give(self, max_result_bytes: int) -> list[tuple[Child, list[Assignment]]]:
        """Give all children what was added. Returns the children that can't be given anything, with their jobs."""
        return [
            (load.child, load.added)
            for load in self._loads
            if load.added and not load.child.give(load.added, max_result_bytes)
        ]

    def _heap(self, task: str) -> list[tuple[int, int, _Load]]:
        if task not in self._heaps:
            warm = (child for child in self._children if child.task == task and child.pid)
            loads = [_Load(child) for child in warm if child.open_to_more and not child.runs_over(self._now)]
            self._loads += loads
            self._heaps[task] = [(load.length // self._share(task), number, load) for number, load in enumerate(loads)]
            heapq.heapify(self._heaps[task])
        return self._heaps[task]
