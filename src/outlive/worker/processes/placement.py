"""Which child runs which of the claimed jobs: they are spread over warm children of their task and free slots."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from outlive.worker.processes.children import AHEAD_S, OVER_S, Assignment, Child

DAY_S = 86400.0
MAX_AHEAD = 800
"""How many jobs a child has at most."""


class Pace:
    """How long the jobs of each task take: the less, the more of them a child may have."""

    def __init__(self) -> None:
        self._average_s: dict[str, float] = {}

    def note(self, task: str, took_s: float, elapsed_s: float, *, fresh: bool = False) -> float:
        """How long a job took: as its child measured it, unless that makes no sense, or plainly more time has passed.

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


@dataclass(slots=True)
class Load:
    """The jobs that a warm child, or the next child of a free slot, is about to be given."""

    child: Child | None
    most: int
    """How many more jobs it may be given."""
    length: int = 0
    jobs: list[Assignment] = field(default_factory=list)


class Placement:
    def __init__(
        self,
        children: Collection[Child],
        *,
        free: int,
        at_hand: int,
        share: Callable[[str], int],
        ahead: Callable[[str], int],
    ) -> None:
        """`free` slots are free, and `at_hand` new children for them. A child gets a `share` of a task's jobs before
        another one does, and a new child gets what it may have `ahead`.
        """
        self._children, self._free, self._at_hand = children, free, at_hand
        self._share, self._ahead, self._now = share, ahead, time.monotonic()
        self.loads: list[Load] = []
        self._heaps: dict[str, list[tuple[int, int, Load]]] = {}
        """The loads of each warm task, the smallest first, in shares. Those that are full are left out."""

    def add(self, one: Assignment) -> None:
        """Add a job to the smallest load of its task. A free slot is better than a place behind other jobs.

        A job with losses gets a slot of its own: if it kills its worker again, no other job is suspected.
        """
        task, max_jobs = one.job.task, one.facts.max_jobs
        alone = max_jobs == 1 or one.job.losses
        heap = [] if alone else self._heap(task, max_jobs)
        if min(self._free, self._at_hand) > 0 and (not heap or heap[0][0]):
            self._at_hand -= 1
            most = 1 if alone else min(self._ahead(task), max_jobs)
            heapq.heappush(heap, self._entry(task, Load(None, most)))
        if heap:
            _, number, load = heap[0]
            load.jobs.append(one)
            load.length += 1
            self._free -= load.length == 1
            if len(load.jobs) < load.most and load.length < MAX_AHEAD:
                heapq.heapreplace(heap, (load.length // self._share(task), number, load))
            else:
                heapq.heappop(heap)

    def _heap(self, task: str, max_jobs: int) -> list[tuple[int, int, Load]]:
        if task not in self._heaps:
            heap = self._heaps[task] = []
            for child in self._children:
                open_to_more = child.bound and child.pid and not child.held_up and not child.runs_over(self._now)
                if child.task == task and open_to_more and child.served < max_jobs and len(child.given) < MAX_AHEAD:
                    heap.append(self._entry(task, Load(child, max_jobs - child.served, len(child.given))))
            heapq.heapify(heap)
        return self._heaps[task]

    def _entry(self, task: str, load: Load) -> tuple[int, int, Load]:
        self.loads.append(load)
        return load.length // self._share(task), len(self.loads), load
