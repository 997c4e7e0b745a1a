"""The claim loop, the heart of a worker: write the ends of finished attempts, claim the next jobs, hand them to slots.

One statement on the hot connection does both, again and again. Nothing else uses that connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from uuid import UUID

import psycopg

from outlive import store
from outlive.config import Config
from outlive.model import Claimed, Lane
from outlive.worker.idling import Idling
from outlive.worker.lane_finder import LaneFinder
from outlive.worker.lanes import Key
from outlive.worker.leases import Leases
from outlive.worker.outbox import Outbox
from outlive.worker.reconciliation import Reconciliation
from outlive.worker.session import Session
from outlive.worker.slots import Slots
from outlive.worker.source_outcomes import SourceOutcomes
from outlive.worker.wakeup import Wakeup

MAX_CLAIM = 512
GATHER_S = 0.005
"""How long a busy worker collects ends before it writes them: one statement for many costs little more than for one."""

_log = logging.getLogger("outlive.worker")


class ClaimLoop:
    def __init__(
        self,
        worker: UUID,
        config: Config,
        session: Session,
        *,
        slots: Slots,
        leases: Leases,
        outbox: Outbox,
        sources: SourceOutcomes,
        wake: Wakeup,
    ) -> None:
        self._worker, self._config, self._session = worker, config, session
        self._slots, self._leases, self._outbox, self._sources, self._wake = slots, leases, outbox, sources, wake
        self._finder = LaneFinder(session, wake)
        self._idling = Idling(worker, session, slots=slots, finder=self._finder, wake=wake)
        self._reconciliation = Reconciliation(worker, config, session, slots=slots, leases=leases, outbox=outbox)
        self._generation = 0
        self.closing = False
        self.making_room = False
        """Nothing is claimed until this worker is idle and can run a suspect alone."""
        self._suspect_last = False
        """The last claim was a suspect: other jobs that wait come before the next suspect."""

    async def run_once(self) -> None:
        """End and claim, or wait until there may be something to do."""
        self._wake.clear()
        if len(self._outbox.waiting) < MAX_CLAIM // 2 and self._slots.content():
            await asyncio.sleep(GATHER_S)
        await self._connect()
        await self._find_lanes()
        await self._sources.write_once_due(self._session)
        offered, limit = self._offer()
        if not self._outbox.waiting and not offered:
            await self._idling.rest()
            return
        sourced = offered if offered and offered[0].source else []
        if self._outbox.waiting or not sourced:
            await self._end_and_claim([] if sourced else offered, limit)
        if sourced:
            await self._claim_sourced(sourced, limit)

    async def _connect(self) -> None:
        await self._session.connect()
        if self._generation != self._session.generation:
            self._generation = self._session.generation
            self._idling.forget()
            self._reconciliation.start_over()
        if self._reconciliation.due:
            started = time.monotonic()
            await self._begin(await self._reconciliation.run_once(), since=started)

    async def _find_lanes(self) -> None:
        """Find the lanes that have jobs. An idle worker takes a suspect first, if there is one."""
        await self._idling.wake_if_busy()
        if self.closing or not (self._slots.capacity() or self._slots.room()):
            return
        tasks, queues = list(self._slots.tasks), self._config.queues
        due = self._finder.due or self.making_room
        if due:
            await self._finder.find(tasks, queues)
        if self._finder.sources_due:
            await self._finder.find_sourced(tasks, queues)
        if due and self._slots.idle() and not (self._suspect_last and self._offer()[0]):
            await self._claim_suspect()

    def _offer(self) -> tuple[list[Lane], int]:
        """The lanes to claim from, and how many jobs.

        If slots are free: lanes of fresh tasks, with one job for each slot, or of one warm task, with some jobs ahead,
        or of sources. If no slot is free: lanes of warm tasks whose children can be given some jobs ahead.
        """
        if self.closing or self.making_room or self._outbox.slow.too_much or self._reconciliation.waits_for_disowned:
            return [], 0
        free = self._slots.capacity()
        room = {} if free else self._slots.room()

        def kind(key: Key) -> object:
            _, source, task, priority = key
            if not free:
                return "ahead" if not source and room.get(task, 0) > 0 else None
            if source:
                return ("source", priority)
            return ("warm", task) if self._slots.ahead(task) > 1 else "fresh"

        def quota(key: Key) -> int:
            return free * (1 if key[1] else self._slots.ahead(key[2])) if free else room.get(key[2], 0)

        if not self._finder.lanes or (not free and not room):
            return [], 0
        lanes = self._finder.lanes.offer(self._slots.tasks, kind, quota, time.monotonic())
        if not lanes:
            return [], 0
        return lanes, min(MAX_CLAIM, lanes[-1].quota if free else sum(room.values()))

    async def _end_and_claim(self, offered: list[Lane], limit: int) -> None:
        started = time.monotonic()
        ending = await self._outbox.take()
        limit = limit if offered else 0
        self._reconciliation.unsure = True  # Until the answer has arrived; a cancelled task leaves it so.
        try:
            turn = await self._session.run(
                store.end_and_claim(
                    self._worker,
                    ending,
                    offered,
                    limit=limit,
                    lease_s=self._config.lease_s,
                    begun=limit <= self._slots.capacity(),  # Jobs beyond that wait behind others.
                )
            )
        except (psycopg.DataError, struct.error) as error:
            await self._outbox.write_one_by_one(ending, error)
            return
        except psycopg.errors.LockNotAvailable:
            self._outbox.put_back(ending)
            self._reconciliation.unsure = False
            if not self._outbox.start_being_careful():
                raise
            return
        except BaseException:
            self._outbox.put_back(ending)
            raise
        self._outbox.written(ending, turn.stale)
        self._finder.lanes.claimed(offered, turn.claimed, limit)
        await self._begin(turn.claimed, since=started)

    async def _claim_sourced(self, offered: list[Lane], limit: int) -> None:
        """Claim jobs of one source after the other, as many as each source admits."""
        started = time.monotonic()
        self._reconciliation.unsure = True
        admitted = await self._session.run(
            store.claim_sourced(self._worker, offered, limit=limit, lease_s=self._config.lease_s)
        )
        self._finder.lanes.wait(admitted.waits_s, time.monotonic())
        self._finder.lanes.claimed(offered, admitted.claimed, limit)
        await self._begin(admitted.claimed, since=started)

    async def _claim_suspect(self) -> None:
        started = time.monotonic()
        self._reconciliation.unsure = True
        tasks, queues = list(self._slots.tasks), self._config.queues
        claimed = await self._session.run(
            store.claim_suspect(self._worker, tasks=tasks, queues=queues, lease_s=self._config.lease_s)
        )
        self.making_room = False  # This worker has the suspect, or another one does.
        await self._begin(claimed, since=started)

    async def _begin(self, jobs: list[Claimed], *, since: float) -> None:
        """Hand claimed jobs to slots, with their checkpoints and without known killers."""
        jobs = await self._without_killers(jobs)
        if again := [job.id for job in jobs if job.attempt > 1]:
            checkpoints = await self._session.run(store.checkpoints(again))
            self._slots.checkpoints |= checkpoints
        self._leases.hold((job.token for job in jobs), since=since)
        self._reconciliation.unsure = False
        self._slots.take(sorted(jobs, key=lambda job: (job.priority, job.ready_at)))
        if jobs:
            self._idling.interrupt()
            self._suspect_last = jobs[0].alone_s > 0

    async def _without_killers(self, jobs: list[Claimed]) -> list[Claimed]:
        """Quarantine jobs whose task and arguments have killed under other ids, for the tasks that ask for it."""
        tasks = self._slots.tasks
        watched = [job.token for job in jobs if job.task in tasks and tasks[job.task].by_fingerprint]
        caught = await self._session.run(store.convict(self._worker, watched)) if watched else []
        return [job for job in jobs if job.id not in caught]
