"""What a worker asks for when it claims: from which lanes, and how many jobs. This does no I/O.

A fresh task gets a new process for every job. The children of a warm task run one job after the other, and may be given
some ahead. Those of a shared task run many at once: a new one is begun when all others are full.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from outlive.model import Lane
from outlive.worker.claiming.lanes import NEEDS_SLOT, SATED, LaneKey, Lanes

if TYPE_CHECKING:
    from outlive.worker.processes.slots import Slots

MAX_CLAIM = 1024
"""How many jobs one statement claims at most."""


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
