"""Waits of jobs: a job that waits is suspended in the database, and its process is parked for a while.

A parked process is blocked in its call. It holds no slot, and its row is not this worker's. If the wait ends while it
is parked, the claim loop claims the job again, and the process goes on. It is ended after some time, and when memory is
wanted; then the next worker replays the steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from uuid import UUID

import msgspec
import psycopg

from outlive import linux, store
from outlive.config import Config
from outlive.errors import Cancel, StaleAttempt
from outlive.model import Claimed
from outlive.protocol import Call, Reply, Wait, Waited, answer_wait
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.limits import cgroups, memory_limits
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.children import Child
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting import job_log
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

LOOK_S = 0.4
"""How often it looks at parked processes. It must be less than FRESH_S (limits/memory.py)."""
AGAIN_S = 0.1
"""How long a wait is put off while the database is away."""
MOST = 200
"""How many processes are parked at most: each takes five descriptors."""
_wait = msgspec.msgpack.Decoder(Wait)


class Waits:
    def __init__(
        self, worker: UUID, config: Config, session: Session, *, slots: Slots, progress: ProgressWriter, wake: Wakeup
    ) -> None:
        self._worker, self._session = worker, session
        self._slots, self._progress, self._wake = slots, progress, wake
        self._park_s = config.park_s
        self._most_bytes = config.park_bytes or cgroups.memory_bytes() // 4
        self._may_have_parked = False

    async def suspend(self, session: Session, child: Child, call: Call) -> Reply | None:
        """Let the job of a child wait. None: its process is parked, or has been ended."""
        wait = _wait.decode(call.body)
        if (one := child.find(wait.token)) is None:
            raise StaleAttempt("its attempt has ended")
        one.suspending = True
        try:
            suspended = await self._suspend(session, child, wait)
        finally:
            one.suspending = False
        if suspended.outcome == "cancelled":
            raise Cancel("cancelled on request")
        if suspended.outcome == "over":
            waited = Waited(wait.token, one.job.attempt, True, suspended.value)
            return answer_wait(call.number, waited)
        if child.find(wait.token):
            job_log.note("INFO", "job %s waits in %s", one.job, wait.step)
            self._park(child, one, call.number, keep=suspended.parked)
            if suspended.parked and wait.after_s is not None and wait.after_s <= self._park_s:
                asyncio.get_running_loop().call_later(wait.after_s, self._wake.resume)
        return None

    async def _suspend(self, session: Session, child: Child, wait: Wait) -> store.Suspended:
        """Try until the database answers. If an earlier answer was lost, the attempt is stale: the process ends."""
        while True:
            try:
                if self._progress.waiting(wait.token):  # The next attempt begins with that.
                    await self._progress.write_that_of(wait.token)
                may_park = self._park_s > 0 and not child.shared
                return await session.run(store.suspend(self._worker, wait, may_park=may_park))
            except psycopg.errors.LockNotAvailable:
                raise
            except psycopg.OperationalError:
                if not child.find(wait.token):
                    raise
                await asyncio.sleep(AGAIN_S)

    def _park(self, child: Child, one: Assignment, call: int, *, keep: bool) -> None:
        """Its job is suspended, so its slot is free. Its process stays, or ends if that is of no use.

        It ends too if it was about to be stopped: what was decided about this attempt must not be done to the next.
        """
        if child.shared:  # Its job never goes on there. A child with many of these is replaced.
            del child.given[one.job.token]
            self._slots.report.suspended(one)
            child.halt(one, suspended=True)
            child.shared.suspended.add(one.job.token)
            if len(child.shared.suspended) >= child.shared.seats:
                child.retire()
        else:
            self._slots.place_again(child.recall())
            self._slots.report.suspended(one)
            child.park(call)
            self._may_have_parked = True
            if not keep or one.verdict or not child.may_park:
                child.retire()
        self._slots.child_ready()

    def resume(self, job: Claimed, waited: Waited) -> bool:
        """A job that waited was claimed again: its process goes on. False if that is gone."""
        for child in self._slots.children:
            if child.parked and child.parked.job.id == job.id and linux.lives(child.pid):
                child.resume(job, waited).trace = self._slots.report.starting(job)
                return True
        return False

    def end_outdated(self, jobs: Collection[Claimed]) -> None:
        """These jobs begin again: their parked processes don't know what happened meanwhile."""
        if self._may_have_parked:
            ids = {job.id for job in jobs}
            parked = [child for child in self._slots.children if child.parked]
            for child in parked:
                if child.parked and child.parked.job.id in ids:
                    child.retire()
            self._may_have_parked = bool(parked)

    async def run_once(self) -> None:
        """End the processes that are parked for too long or have more memory than their jobs may, and the oldest ones
        while all together have too much."""
        await asyncio.sleep(LOOK_S)
        now, kept_bytes, ended = time.monotonic(), 0, list[UUID]()
        parked = sorted((one for one in self._slots.children if one.parked), key=lambda one: -one.parked_at)
        tight = sum(map(memory_limits.parked_bytes_at_most, parked)) > self._most_bytes
        for place, child in enumerate(parked):
            await asyncio.sleep(0)  # There may be hundreds, and to weigh one takes milliseconds.
            if (one := child.parked) is None:  # It goes on, or has ended.
                continue
            over = None if one.memory_bytes is None else memory_limits.verdict(child, one)
            if over:
                job_log.note("WARNING", "job %s waits, and its process is ended: %s", one.job, over.error)
            elif tight:
                kept_bytes += memory_limits.parked_bytes(child)
            if over or place >= MOST or kept_bytes > self._most_bytes or now - child.parked_at > self._park_s:
                ended.append(one.job.id)
                child.retire()
        if ended:
            await self._session.run(store.unpark(self._worker, ended))
