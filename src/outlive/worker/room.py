"""How many jobs a worker can be given ahead, beyond those for which a slot is free.

Warm children have jobs ahead. Short jobs of fresh tasks wait for the next process: with every slot busy, the worker has
some at hand when a slot gets free, and ends and claims several in one statement.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive.worker.slots import Slots


class Room:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def ahead(self, task: str) -> int:
        """How many jobs a child of this task should have at a time; 1 unless the task is warm."""
        facts = self._slots.tasks[task]
        if facts.recycle_after == 1 or facts.limits.source or task in self._slots.unclean.tasks:
            return 1
        return min(facts.recycle_after, self._slots.pace.ahead(task))

    def by_task(self) -> Mapping[str, int]:
        """How many more jobs of each task can be taken in while every slot is busy."""
        slots = self._slots
        room: dict[str, int] = {}
        if slots.closed or slots.suspect() is not None:
            return room
        now, free = time.monotonic(), slots.free
        for child in slots.children:
            if child.task not in slots.tasks or not child.open_to_more or child.runs_over(now):
                continue
            if not child.given:  # Only if no other child can be forked: otherwise any task may have its slot.
                free -= 1
                if free < 0:
                    continue
            left = min(self.ahead(child.task) - len(child.given), slots.tasks[child.task].recycle_after - child.served)
            if left > 0:
                room[child.task] = room.get(child.task, 0) + left
        return room | self._fresh(now)

    def _fresh(self, now: float) -> dict[str, int]:
        """How many more jobs of each fresh task may wait for a slot. None behind a job that takes long."""
        slots = self._slots
        if slots.trouble:
            return {}
        room: Counter[str] = Counter()
        for child in slots.busy:
            if child.task in slots.tasks and not child.runs_over(now):
                room[child.task] += self._behind(child.task)
        for one in slots.unplaced:
            room[one.job.task] -= 1
        return {task: left for task, left in room.items() if left > 0}

    def _behind(self, task: str) -> int:
        """How many jobs of a fresh task may wait behind one of them; 0 if they are not short.

        A death of the worker is not charged to a job that was claimed ahead until its begin is marked. A task that asks
        for the first loss to count gets no jobs ahead.
        """
        facts = self._slots.tasks[task]
        limits = facts.limits
        strict = limits.on_worker_death == "fail" or limits.max_losses == 1
        if facts.recycle_after > 1 or limits.source or strict:
            return 0
        number = self._slots.pace.ahead(task)
        return number if number > 1 else 0

    def after(self, task: str, untaken: int) -> Mapping[str, int]:
        """How many more jobs children can be given after these, if all that wait for a child are of this warm task."""
        slots, now = self._slots, time.monotonic()
        alike = task in slots.tasks and all(one.job.task == task and not one.job.losses for one in slots.unplaced)
        held_up = slots.closed or slots.trouble or slots.suspect() is not None
        if not alike or held_up or any(child.runs_over(now) for child in slots.children):
            return {}
        given = sum(len(child.given) for child in slots.children)
        left = slots.size * self.ahead(task) - untaken - len(slots.unplaced) - given
        return {task: left} if left > 0 else {}

    def served_tasks(self) -> set[str | None]:
        """The warm tasks whose children take more jobs when they have done some."""
        now = time.monotonic()
        takers = (child for child in self._slots.busy if child.open_to_more and not child.runs_over(now))
        return {child.task for child in takers if child.task in self._slots.tasks and self.ahead(child.task) > 1}

    def is_filled(self) -> bool:
        """Whether the slots have enough to do for some milliseconds."""
        slots = self._slots
        if free := slots.capacity():
            return 2 * free < slots.size - 1
        if len(slots.unplaced) >= slots.size:
            return True
        return all(one.task in slots.tasks and len(one.given) > max(1, self.ahead(one.task) // 2) for one in slots.busy)
