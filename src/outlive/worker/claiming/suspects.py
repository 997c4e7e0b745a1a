"""Suspects: jobs that ran when several workers died. They begin alone in the next one.

Those that share a process begin there together, as many as `outlive.crowd` (verdict.sql) says. Nothing else is claimed
while a suspect is alone. When its time is over, the database is updated first, and only then may other jobs begin
beside it: `alone` in the database always means that nothing was beside it.

A suspect costs other jobs a few seconds at most. While no job waits for this worker, or other workers claim those that
do, it has all its time alone. But when a job has waited for four seconds because of a suspect, it begins. A suspect
that has waited for ten minutes begins beside other jobs.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from uuid import UUID

from outlive import store
from outlive.model import Claimed
from outlive.worker import log
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.lane_finder import SOURCES_BATCH, START, LaneFinder
from outlive.worker.claiming.lanes import LaneKey, lane_key
from outlive.worker.claiming.room import MAX_CLAIM, Offer
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting import job_log
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

LOOK_S = 0.25
WAITING_LOOK_S = 5.0
"""How often a worker checks whether a suspect has waited too long."""
MAKE_ROOM_AFTER_S = 60.0
ROOM_S = 60.0
"""How long a worker stops claiming to make room, at most, and how long it then claims before it may stop again."""
STARVES_S = 600.0
"""A suspect that has waited this long begins beside other jobs: no worker has been idle."""
HOLD_UP_S = 4.0
"""How long other jobs may wait for a worker because of a suspect."""
HOLD_UP_FOR_ROOM_S = 2.0
"""The part of that which a worker may take to make room. The rest is left for the suspect."""


class Suspects:
    """Claims a suspect for an idle worker, and looks after the time that it, or other jobs, have waited for that."""

    def __init__(
        self, worker: UUID, claims: Session, session: Session, slots: Slots, finder: LaneFinder, wake: Wakeup,
        bounds: Bounds,
    ) -> None:  # fmt: skip
        self._worker, self._claims, self._session = worker, claims, session
        self._slots, self._finder, self._wake, self._bounds = slots, finder, wake, bounds
        self.making_room = False
        """Nothing is claimed until this worker is idle and can run a suspect alone."""
        self._room_from = 0.0
        self._room_until: float | None = None
        """When this worker stops making room at the latest. None: it makes none."""
        self._starves = False
        """A suspect has waited so long that it begins beside other jobs."""
        self._not_before = 0.0
        """Other jobs have waited because of a suspect, and have this worker until then."""
        self._others_next = False
        """The last claim was a suspect: other jobs that wait come before the next one."""
        self._first: dict[LaneKey, tuple[datetime, float]] = {}
        """When the first job of each lane is ready, and since when (monotonic) it is the first. While that changes,
        other workers claim the jobs of the lane."""
        self._held_up_s = 0.0
        """How long a job has waited for this worker, because it claims nothing."""
        self._ask_at = time.monotonic() + WAITING_LOOK_S

    def may_begin(self, *, others_wait: bool) -> bool:
        if self._bounds.left == 0:
            return False
        if self._starves:
            return self._slots.capacity() > 0
        if not self._finder.suspect_waits or not self._slots.idle() or time.monotonic() < self._not_before:
            return False
        theirs, self._others_next = self._others_next and others_wait, False
        return not theirs

    async def claim(self, _: Offer) -> list[Claimed]:
        """Claim a suspect and, whatever is offered, nothing else."""
        after_s = STARVES_S if self._starves else None
        limit = 1 if self._starves else self._bounds.limit(Offer([], MAX_CLAIM)).limit
        self._starves = self._finder.suspect_waits = False
        tasks, queues, lease_s = list(self._slots.tasks), self._slots.queues, self._slots.leases.lease_s
        most = [min(limit, self._slots.room.together(task)) for task in tasks]
        claimed = await self._claims.run(
            store.claim_suspect(self._worker, tasks=tasks, queues=queues, most=most, lease_s=lease_s, after_s=after_s)
        )
        self.making_room = False  # This worker has the suspect, or another one does.
        self._others_next = bool(claimed)
        return claimed

    async def run_once(self) -> None:
        await asyncio.sleep(LOOK_S)
        suspect = self._slots.suspect()
        if suspect is not None and time.monotonic() - (suspect.started or suspect.taken) >= suspect.job.alone_s:
            await self._end_time_alone(suspect, "job %s survived its time alone: other jobs run beside it now")
        elif suspect is not None or self._room_until is not None:
            await self._look_for_held_up()
            if self._room_until is not None:
                await self._make_room_until(self._room_until)
            if suspect is not None and self._held_up_s >= HOLD_UP_S and self._slots.size > 1:
                await self._end_time_alone(suspect, "job %s was alone while others waited: they run beside it now")
        else:
            if self._held_up_s:  # Claim no suspect for as long as other jobs have waited because of the last one.
                self._not_before = time.monotonic() + self._held_up_s
            self._held_up_s, self._first = 0.0, {}
            if time.monotonic() >= self._ask_at and not self._slots.idle():  # An idle one claims what it finds.
                self._ask_at = time.monotonic() + WAITING_LOOK_S
                await self._look_for_suspects()

    async def _look_for_held_up(self) -> None:
        """Find for how long the first job of a lane has been the same."""
        tasks, queues = list(self._slots.tasks), self._slots.queues
        unsourced = await self._session.run(store.unsourced_lanes(tasks, queues))
        sourced = await self._session.run(store.sourced_lanes(tasks, queues, after=START, batch=SOURCES_BATCH))
        now, before = time.monotonic(), self._first
        ready = {lane_key(lane): lane.ready_at for lane in (*unsourced.lanes, *sourced.lanes) if lane.ready}
        same = {key for key, ready_at in ready.items() if key in before and before[key][0] == ready_at}
        self._first = {key: before[key] if key in same else (ready_at, now) for key, ready_at in ready.items()}
        self._held_up_s = max((now - since for _, since in self._first.values()), default=0.0)

    async def _end_time_alone(self, suspect: Assignment, why: str) -> None:
        if await self._session.run(store.end_time_alone(self._worker, suspect.job.token)):
            for one in self._slots.suspects():
                one.alone = False
                job_log.note("INFO", why, one.job)
            self._wake.notify()

    async def _look_for_suspects(self) -> None:
        """Run a suspect that has waited very long beside other jobs, or make room for one that has waited for long."""
        if self._slots.closed:
            return
        if await self._one_waits(STARVES_S):
            self._starves = True
            self._wake.notify()
        elif time.monotonic() < self._room_from or not await self._one_waits():
            return
        elif await self._session.run(store.make_room(self._worker, for_s=ROOM_S)):  # One worker at a time.
            log.warning("a job that may kill workers has waited too long: this worker makes room to run it alone")
            self._room_until, self.making_room = time.monotonic() + ROOM_S, True

    async def _make_room_until(self, until: float) -> None:
        """Make room for as long as a suspect waits and no other job waits for long."""
        over = not self.making_room or self._slots.closed or time.monotonic() >= until
        if over or self._held_up_s >= HOLD_UP_FOR_ROOM_S or not await self._one_waits():
            self._room_until, self.making_room = None, False
            self._room_from = time.monotonic() + ROOM_S
            self._wake.notify()
            await self._session.run(store.end_room(self._worker))

    async def _one_waits(self, after_s: float = MAKE_ROOM_AFTER_S) -> bool:
        tasks, queues = list(self._slots.tasks), self._slots.queues
        return await self._session.run(store.suspects_wait(tasks, queues, after_s=after_s))
