"""What a worker asks for when it claims: from which lanes, and how many jobs it has room for. This does no I/O.

A fresh task gets a new process for every job. The children of a warm task run one job after the other, and may be given
some ahead, beyond those for which a slot is free: the worker ends and claims many at once. Those of a shared task run
many at once: a new one is begun when all others are full. Short jobs of fresh tasks, and those for which a warm child
has no room before it is replaced, wait for the next child of a slot.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from outlive.model import Lane
from outlive.worker.claiming.lanes import NEEDS_SLOT, SATED, LaneKey, Lanes

if TYPE_CHECKING:
    from outlive.worker.processes.children import Child
    from outlive.worker.processes.slots import Slots

MAX_CLAIM = 1024
"""How many jobs one statement claims at most."""
NEXT_CHILDREN = 8
"""A slot of a warm task holds jobs for at most this many successive children: to fork and end these takes about as long
as the work that a child is given ahead."""
SPREAD = 64
"""Jobs claimed together are spread over at least this many children, if there are."""


class Room:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def ahead(self, task: str) -> int:
        """How many jobs a slot should have, in its child or for the next one; 1 unless the task is warm."""
        facts = self._slots.tasks[task]
        if facts.share > 1:
            return facts.share
        if facts.max_jobs == 1 or task in self._slots.unclean.tasks:
            return 1
        return min(NEXT_CHILDREN * facts.max_jobs, self._slots.pace.ahead(task))

    def share(self, jobs: int, task: str) -> int:
        """How many of these jobs to give a child before the next one: to wake each child for a few costs more."""
        return max(1, min(jobs // SPREAD, self.ahead(task)))

    def by_task(self) -> Mapping[str, int]:
        """How many more jobs of each task can be taken in while every slot is busy."""
        slots = self._slots
        room: Counter[str] = Counter()
        if slots.closed or slots.suspect() is not None or len(slots.busy) > slots.size:
            return room
        now, free, most = time.monotonic(), slots.free, cache(self._most)
        for child in slots.children:
            if child.task not in slots.tasks:
                continue
            if child.shared:
                room[child.task] += child.seats_left(slots.tasks[child.task].share)
                continue
            if child.held_up or child.runs_over(now):
                continue
            if not child.given:  # Only if no other child can be forked: otherwise any task may have its slot.
                free -= child.bound
                if free < 0 or not child.bound:
                    continue
            room[child.task] += max(0, self._left(child, child.task, most(child.task)))
        room.subtract(Counter(one.job.task for one in slots.unplaced))
        return {task: left for task, left in room.items() if left > 0}

    def _most(self, task: str) -> int:
        """How many jobs of this task a slot may have."""
        return 1 + self._behind(task) if self._slots.tasks[task].max_jobs == 1 else self.ahead(task)

    def _left(self, child: Child, task: str, most: int) -> int:
        """How many more jobs its slot may have. If no other child can be forked, this one must take them."""
        left = most - len(child.given)
        if self._slots.trouble:
            left = min(left, 0 if child.retiring else self._slots.tasks[task].max_jobs - child.served)
        return left

    def _behind(self, task: str) -> int:
        """How many jobs of a fresh task may wait behind one of them; 0 if they are not short."""
        limits = self._slots.tasks[task]
        # A death of the worker is not charged to a job ahead until its begin is marked: here the first loss counts.
        if limits.on_worker_death == "fail" or limits.max_losses == 1:
            return 0
        number = self._slots.pace.ahead(task)
        return number if number > 1 else 0

    def seats(self, task: str) -> int:
        """How many more jobs of this task its shared children can run at once."""
        share = self._slots.tasks[task].share
        return sum(child.seats_left(share) for child in self._slots.children if child.task == task)

    def together(self, task: str) -> int:
        """How many jobs of this task one process can begin at once while every slot is free."""
        facts = self._slots.tasks[task]
        able = [child for child in self._slots.children if child.task == task and child.seats_left(facts.share) > 0]
        return min([facts.share, *(facts.max_jobs - child.served for child in able)])

    def served_tasks(self) -> set[str | None]:
        """The warm tasks whose slots take more jobs when they have done some."""
        now = time.monotonic()
        busy = self._slots.busy
        tasks = {child.task for child in busy if child.shared or not (child.held_up or child.runs_over(now))}
        return {task for task in tasks if task in self._slots.tasks and self.ahead(task) > 1}

    def is_filled(self) -> bool:
        """Whether the slots have enough to do for some milliseconds."""
        slots = self._slots
        if free := slots.capacity():
            return 2 * free < slots.size - 1
        waiting, ahead = len(slots.unplaced) // slots.size, cache(self.ahead)
        if any(one.shared for one in slots.busy):
            return not any(one.seats_left(one.shared.seats) > one.shared.seats // 2 for one in slots.busy if one.shared)
        return all(
            one.task in slots.tasks and len(one.given) + waiting > max(1, ahead(one.task) // 2) for one in slots.busy
        )


class Offer(NamedTuple):
    """The lanes from which a claim may take jobs, and how many. All have a source that must be asked, or none has."""

    lanes: list[Lane]
    limit: int
    begun: bool = True
    """Each of the jobs has a free slot. Otherwise some will wait behind others."""


NOTHING = Offer([], 0)


def offered(lanes: Lanes, slots: Slots) -> Offer:
    """As many jobs as there are free slots; if no slot is free, as many as children can be given ahead."""
    if not lanes:
        return NOTHING
    free = slots.capacity()
    return _for_free_slots(lanes, slots, free) if free else _ahead(lanes, slots)


def _for_free_slots(lanes: Lanes, slots: Slots, free: int) -> Offer:
    """Lanes of fresh tasks, one job for each slot; or of one warm task, with some jobs ahead; or of sources to ask."""
    ahead = slots.room.ahead

    def kind(key: LaneKey) -> Hashable:
        if slots.shares(key.task):
            return _seats(lanes, key)
        if lanes.asks(key):
            return ("source", key.priority)
        return ("warm", key.task) if ahead(key.task) > 1 else "fresh"

    def quota(key: LaneKey) -> int:
        if slots.shares(key.task):
            return slots.room.seats(key.task) or ahead(key.task)
        return free if lanes.asks(key) else free * ahead(key.task)

    chosen = lanes.offer(slots.tasks, kind, quota, time.monotonic())
    # The last lane has the quota that all of its kind share. Empty lanes before it may be of another kind.
    limit = min(MAX_CLAIM, chosen[-1].quota) if chosen else 0
    return Offer(chosen, limit, begun=limit <= free or slots.shares(chosen[-1].task))


def _seats(lanes: Lanes, key: LaneKey) -> Hashable:
    """What can be claimed together for shared children: jobs of one task whose sources are asked, or are not."""
    return ("seats", key.task, key.priority if lanes.asks(key) else None)


def _ahead(lanes: Lanes, slots: Slots) -> Offer:
    """Lanes of tasks whose children can be given some jobs ahead. If a source fails, only a warm child returns them."""
    room = slots.room.by_task()
    if not room:
        return NOTHING
    served = slots.room.served_tasks()

    def kind(key: LaneKey) -> Hashable:
        if slots.shares(key.task) and key.task in room:
            return _seats(lanes, key)
        may = not lanes.asks(key) and (not key.source or slots.tasks[key.task].max_jobs > 1)
        if may and key.task in room:
            return "ahead"
        has_children = may and key.task in served
        return SATED if has_children or slots.trouble else NEEDS_SLOT

    chosen = lanes.offer(slots.tasks, kind, lambda key: room.get(key.task, 0), time.monotonic())
    if not chosen:
        return NOTHING
    shares = slots.shares(chosen[-1].task)
    return Offer(chosen, min(MAX_CLAIM, room[chosen[-1].task] if shares else sum(room.values())), begun=shares)
