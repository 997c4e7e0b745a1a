"""Which child runs which of the claimed jobs: they are spread over warm children of their task and free slots."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.children import AHEAD_S, OVER_S, Child

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
        if elapsed_s > OVER_S or not 0.0 <= took_s < elapsed_s + OVER_S:
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


def spread(
    jobs: Iterable[Assignment],
    children: Collection[Child],
    *,
    free: int,
    at_hand: int,
    share: Callable[[str], int],
    ahead: Callable[[str], int],
) -> list[Load]:
    """Add each job to the smallest load of its task. A free slot is better than a place behind other jobs.

    `free` slots are free, and `at_hand` new children for them. A child gets a `share` of a task's jobs before another
    one does, and a new child gets what it may have `ahead`. A job with losses gets a slot of its own: if it kills its
    worker again, no other job is suspected.
    """
    loads: list[Load] = []
    seats: dict[tuple[str, int], list[Load]] = {}
    heaps: dict[str, list[tuple[int, int, Load]]] = {}
    """The loads of each warm task, the smallest first, in shares. Those that are full are left out."""
    for one in jobs:
        task, max_jobs = one.job.task, one.facts.max_jobs
        if one.shares:  # A free slot is taken only if all that share are full.
            if (kind := (task, one.crowd)) not in seats:
                seats[kind] = _shared(children, *kind, max_jobs)
                loads += seats[kind]
            if not any(len(load.jobs) < load.most for load in seats[kind]) and min(free, at_hand) > 0:
                free, at_hand = free - 1, at_hand - 1
                seats[kind].append(Load(None, min(one.crowd, max_jobs)))
                loads.append(seats[kind][-1])
            if open_one := next((load for load in seats[kind] if len(load.jobs) < load.most), None):
                open_one.jobs.append(one)
            continue
        alone = max_jobs == 1 or one.job.losses or one.apart
        if not alone and task not in heaps:
            warm = [Load(child, max_jobs - child.served, len(child.given)) for child in _open(children, task, max_jobs)]
            heaps[task] = [(load.length // share(task), n, load) for n, load in enumerate(warm, len(loads))]
            heapq.heapify(heaps[task])
            loads += warm
        heap = [] if alone else heaps[task]
        if min(free, at_hand) > 0 and (not heap or heap[0][0]):
            at_hand -= 1
            new = Load(None, 1 if alone else min(ahead(task), max_jobs))
            heapq.heappush(heap, (0, len(loads), new))
            loads.append(new)
        if heap:
            _, number, load = heap[0]
            load.jobs.append(one)
            load.length += 1
            free -= load.length == 1
            if len(load.jobs) < load.most and load.length < MAX_AHEAD:
                heapq.heapreplace(heap, (load.length // share(task), number, load))
            else:
                heapq.heappop(heap)
    return loads


def _shared(children: Collection[Child], task: str, crowd: int, max_jobs: int) -> list[Load]:
    """The shared children of a task that have room, among those for `crowd` jobs at once."""
    able = [child for child in children if child.task == task and child.seats_left(crowd) > 0]
    return [Load(child, min(child.seats_left(crowd), max_jobs - child.served), len(child.given)) for child in able]


def _open(children: Collection[Child], task: str, max_jobs: int) -> Iterator[Child]:
    """The warm children of a task that may be given more jobs."""
    now = time.monotonic()
    for child in children:
        has_room = child.served < max_jobs and len(child.given) < MAX_AHEAD
        blocked = child.held_up or child.runs_over(now)
        if child.task == task and child.bound and child.pid and has_room and not blocked:
            yield child
