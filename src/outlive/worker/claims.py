"""The claim loop, the heart of a worker: it writes how attempts ended, and claims the next jobs.

Usually one statement does both (`end_and_claim`). Two other statements claim: `claim_sourced` for jobs of sources, as
many as each source admits, and `claim_suspect` for a suspect. Nothing else uses the loop's connection.

Some words: a lane is the jobs of one queue, source, task and priority. A fresh task gets a new process for every job;
the children of a warm task run one job after the other, and may be given some ahead. `capacity` counts the jobs that
can begin now, with a free slot and a child at hand; `room` the jobs that children can be given ahead. A suspect is a
job that ran when several workers died; it runs alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Hashable, Mapping
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

import psycopg

from outlive import db, store
from outlive.config import Config
from outlive.db import Answer
from outlive.metrics.tallies import Tallies
from outlive.model import Claimed, Ended, Lane, Turn
from outlive.statement import Statement
from outlive.worker.idling import Idling
from outlive.worker.lane_finder import LaneFinder
from outlive.worker.lanes import NEEDS_SLOT, SATED, LaneKey
from outlive.worker.leases import Leases
from outlive.worker.outbox import Outbox
from outlive.worker.reconciliation import Reconciliation
from outlive.worker.session import Session
from outlive.worker.slots import Slots
from outlive.worker.slow_ends import never_accepted
from outlive.worker.source_outcomes import SourceOutcomes
from outlive.worker.wakeup import Wakeup

MAX_CLAIM = 1024
"""How many jobs one statement claims at most."""
MANY_ENDS = 512
"""With this many ends the loop writes at once."""
OVERLAP = 64
"""With this many claimed jobs and as many ends the next statement is sent before the jobs are taken in."""
SUSPECT_STARVES_S = 600.0
"""A suspect that has waited for so long begins beside other jobs: no worker has been idle."""
GATHER_S = 0.005
"""How long a busy worker with fewer ends waits for more: one statement for many costs little more than for one."""

_IN_ORDER = attrgetter("priority", "ready_at")

_log = logging.getLogger("outlive.worker")


class Offer(NamedTuple):
    """The lanes from which the next statement may claim, and how many jobs. All have a source, or none has."""

    lanes: list[Lane]
    limit: int

    @property
    def sourced(self) -> bool:
        return bool(self.lanes) and self.lanes[0].source != ""


NO_OFFER = Offer([], 0)


class Untaken(NamedTuple):
    """The answer to `end_and_claim`, before its jobs are taken in."""

    answer: Answer[Turn]
    offer: Offer
    ending: list[Ended]
    since: float
    marked: bool


class ClaimLoop:
    def __init__(
        self,
        worker_id: UUID,
        config: Config,
        session: Session,
        *,
        slots: Slots,
        leases: Leases,
        outbox: Outbox,
        sources: SourceOutcomes,
        wake: Wakeup,
        tallies: Tallies | None = None,
    ) -> None:
        self._worker_id, self._config, self._session = worker_id, config, session
        self._slots, self._leases, self._outbox, self._sources, self._wake = slots, leases, outbox, sources, wake
        self._tallies = tallies
        self._finder = LaneFinder(session, wake)
        self._idling = Idling(worker_id, session, slots=slots, finder=self._finder, wake=wake)
        self._reconciliation = Reconciliation(worker_id, config, session, slots=slots, leases=leases, outbox=outbox)
        self.turned_at = time.monotonic()
        self._generation = 0
        self._untaken: Untaken | None = None
        self.making_room = False
        """Set by `Suspects`: nothing is claimed until this worker is idle and can run a suspect alone."""
        self.suspect_starves = False
        """Set by `Suspects`: a suspect has waited so long that it begins beside other jobs."""
        self.no_suspect_until = 0.0
        """Set by `Suspects`: other jobs have waited because of a suspect, and have this worker until then."""
        self._suspect_last = False
        """The last claim was a suspect: other jobs that wait come before the next suspect."""

    async def run_once(self) -> None:
        """One turn: end and claim, or wait until there may be something to do."""
        self.turned_at = time.monotonic()
        self._wake.clear()  # First: whatever happens from now on wakes the next turn.
        if self._untaken is not None and self._may_overlap(self._untaken):
            await self._end_and_claim(self._offer_ahead(self._room_after(self._untaken)))
            return
        await self._take_untaken()
        hinted = self._finder.take_hints(self._slots.tasks, self._config.queues)
        self._slots.hand_out()
        await self._gather_ends()
        await self._connect()
        await self._reconcile_if_due()
        if not hinted or not self._slots.idle():  # An idle worker claims first what it was told of.
            await self._find_lanes()
        if await self._claim_suspect_if_idle():
            return
        await self._sources.write_once_due(self._session)
        offer = self._offer()
        if offer.sourced:
            if self._outbox.waiting:
                await self._end_and_claim(NO_OFFER)
            await self._claim_sourced(offer)
        elif offer.lanes or self._outbox.waiting:
            await self._end_and_claim(offer)
        else:
            await self._idling.rest()

    async def _gather_ends(self) -> None:
        if len(self._outbox.waiting) < MANY_ENDS and self._slots.room.is_filled():
            await asyncio.sleep(GATHER_S)

    async def _connect(self) -> None:
        await self._session.connect()
        if self._generation != self._session.generation:
            self._generation = self._session.generation
            self._idling.forget()
            self._reconciliation.start_over()

    async def _reconcile_if_due(self) -> None:
        if self._reconciliation.due:
            started = time.monotonic()
            with self._reconciliation.unsure_if_it_fails():
                await self._take(await self._reconciliation.run_once(), since=started, marked=False)
            self._reconciliation.unsure = False

    async def _find_lanes(self) -> None:
        await self._idling.unmark_if_busy()
        if not self._finder.due and not self._finder.sources_due and not self.making_room:
            return  # First: to add up the room takes longer, with many slots.
        if not self._slots.capacity() and not self._slots.room.by_task():
            return
        tasks, queues = list(self._slots.tasks), self._config.queues
        if self._finder.due or self.making_room:  # Another worker may have taken the suspect.
            await self._finder.find(tasks, queues)
        if self._finder.sources_due:
            await self._finder.find_sourced(tasks, queues)

    def _may_overlap(self, untaken: Untaken) -> bool:
        """Whether to send the next statement first, and to take in claimed jobs while the database is at work."""
        return (
            untaken.answer.rows >= OVERLAP
            and len(self._outbox.waiting) >= OVERLAP
            and not self._wake.hints
            and not self._reconciliation.due
            and not self._finder.due
            and not self._finder.suspect_waits
            and not self._held_back
            and self._session.connected(self._generation)
        )

    def _room_after(self, untaken: Untaken) -> Mapping[str, int]:
        tasks = {lane.task for lane in untaken.offer.lanes}
        return self._slots.room.after(tasks.pop(), untaken.answer.rows) if len(tasks) == 1 else {}

    # What to claim

    @property
    def _held_back(self) -> bool:
        return self.making_room or self._outbox.slow.too_much or self._reconciliation.waits_for_disowned

    def _offer(self) -> Offer:
        if self._held_back or not self._finder.lanes:
            return NO_OFFER
        if free := self._slots.capacity():
            return self._offer_to_free_slots(free)
        return self._offer_ahead(self._slots.room.by_task())

    def _offer_to_free_slots(self, free: int) -> Offer:
        """Lanes of fresh tasks, one job for each slot; or of one warm task, with some jobs ahead; or of sources."""

        def kind(key: LaneKey) -> Hashable:
            if key.source:
                return ("source", key.priority)
            return ("warm", key.task) if self._slots.room.ahead(key.task) > 1 else "fresh"

        def quota(key: LaneKey) -> int:
            return free if key.source else free * self._slots.room.ahead(key.task)

        # The last lane has the quota that all of its kind share. Empty lanes before it may be of another kind.
        lanes = self._lanes(kind, quota)
        return Offer(lanes, min(MAX_CLAIM, lanes[-1].quota)) if lanes else NO_OFFER

    def _offer_ahead(self, room: Mapping[str, int]) -> Offer:
        """No slot is free: lanes of warm tasks whose children can be given some jobs ahead."""
        if not room:
            return NO_OFFER
        served = self._slots.room.served_tasks()

        def kind(key: LaneKey) -> Hashable:
            if not key.source and key.task in room:
                return "ahead"
            has_children = not key.source and key.task in served
            return SATED if has_children or self._slots.trouble else NEEDS_SLOT

        lanes = self._lanes(kind, lambda key: room.get(key.task, 0))
        return Offer(lanes, min(MAX_CLAIM, sum(room.values()))) if lanes else NO_OFFER

    def _lanes(self, kind: Callable[[LaneKey], Hashable], quota: Callable[[LaneKey], int]) -> list[Lane]:
        return self._finder.lanes.offer(self._slots.tasks, kind, quota, time.monotonic())

    # The statements

    async def _end_and_claim(self, offer: Offer) -> None:
        ending = await self._outbox.take()
        untaken = 0 if self._untaken is None else self._untaken.answer.rows
        all_begin_now = untaken + offer.limit <= self._slots.capacity()  # Jobs beyond that wait behind others.
        since = time.monotonic()
        try:
            answer = await self._run_while_taking(
                store.end_and_claim(
                    self._worker_id,
                    ending,
                    offer.lanes,
                    limit=offer.limit,
                    lease_s=self._config.lease_s,
                    begun=all_begin_now,
                )
            )
        except psycopg.errors.LockNotAvailable:  # Nothing was written.
            if self._outbox.start_being_careful():
                self._outbox.put_back(ending)
                return  # Another transaction has locked the row of one of them: the next turn sets those aside.
            if not ending:
                raise
            self._outbox.write_one_by_one(ending)  # It has locked what follows from one of them.
            return
        except BaseException as error:
            answered = not isinstance(error, psycopg.Error) or error.sqlstate is not None
            if ending and answered and never_accepted(error):  # Nothing was written.
                _log.warning(
                    "%d ends are written one by one, because together they are refused: %s", len(ending), error
                )
                self._outbox.write_one_by_one(ending)  # Only that one fails.
                return
            self._reconciliation.unsure = True
            self._outbox.put_back(ending)  # If they were written, reconciliation drops them.
            raise
        self._untaken = Untaken(answer, offer, ending, since, marked=all_begin_now)
        if answer.rows < OVERLAP:  # More of them are taken in while the next statement runs, see `_may_overlap`.
            await self._take_untaken()

    async def _run_while_taking(self, statement: Statement[Turn]) -> Answer[Turn]:
        """Send the statement, and take in the jobs of the last one while the database is at work."""
        if self._untaken is None:
            return await self._session.answer(statement)
        running = asyncio.ensure_future(self._session.answer(statement))
        try:
            await asyncio.sleep(0)  # It is sent now.
            await self._take_untaken()
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait([running])
            raise
        except Exception as error:  # This says nothing about the statement that runs.
            level = logging.DEBUG if db.lost(error) else logging.WARNING
            _log.log(level, "claimed jobs could not be taken in, and are read again: %s", error)
        return await running

    async def _take_untaken(self) -> None:
        """Take in what the last statement has claimed, and hand it out."""
        last, self._untaken = self._untaken, None
        if last is not None:
            with self._reconciliation.unsure_if_it_fails():
                try:
                    turn = await last.answer.decoded()
                except BaseException:
                    self._outbox.put_back(last.ending)  # They are written: reconciliation drops them.
                    raise
                self._outbox.written(last.ending, turn.stale)
                self._finder.lanes.claimed(last.offer.lanes, turn.claimed, last.offer.limit)
                await self._take(turn.claimed, since=last.since, marked=last.marked)

    async def _claim_sourced(self, offer: Offer) -> None:
        """Claim jobs of one source after the other, as many as each source admits."""
        since = time.monotonic()
        with self._reconciliation.unsure_if_it_fails():
            admitted = await self._session.run(
                store.claim_sourced(self._worker_id, offer.lanes, limit=offer.limit, lease_s=self._config.lease_s)
            )
            self._finder.lanes.wait(admitted.waits_s, time.monotonic())
            self._finder.lanes.claimed(offer.lanes, admitted.claimed, offer.limit)
            await self._take(admitted.claimed, since=since, marked=True)

    async def _claim_suspect_if_idle(self) -> bool:
        """An idle worker takes a suspect first, but not two in a row while other jobs wait. True if it has one now."""
        if self.suspect_starves and self._slots.capacity():
            self.suspect_starves = False
            return await self._claim_suspect(after_s=SUSPECT_STARVES_S)
        if not self._finder.suspect_waits or not self._slots.idle() or time.monotonic() < self.no_suspect_until:
            return False
        if self._suspect_last and self._offer().lanes:
            return False
        self._finder.suspect_waits = False
        return await self._claim_suspect()

    async def _claim_suspect(self, after_s: float | None = None) -> bool:
        since = time.monotonic()
        tasks, queues, lease_s = list(self._slots.tasks), self._config.queues, self._config.lease_s
        with self._reconciliation.unsure_if_it_fails():
            claimed = await self._session.run(
                store.claim_suspect(self._worker_id, tasks=tasks, queues=queues, lease_s=lease_s, after_s=after_s)
            )
            self.making_room = False  # This worker has the suspect, or another one does.
            await self._take(claimed, since=since, marked=True)
        return bool(claimed)

    async def _take(self, jobs: list[Claimed], *, since: float, marked: bool) -> None:
        """Take in claimed jobs. `marked`: the database has them as begun.

        Leases count from before the claim, so this worker never trusts one for longer than the database does. Jobs for
        which the database must be asked first come last: another statement may be under way.
        """
        asking = {name for name, facts in self._slots.tasks.items() if facts.by_fingerprint}
        later = [job for job in jobs if job.attempt > 1 or job.task in asking]
        now = [job for job in jobs if job.attempt == 1 and job.task not in asking] if later else jobs
        self._hand_in(now, {}, since=since, marked=marked)
        if later:
            later = await self._without_known_killers(later, asking)
            retried = [job.id for job in later if job.attempt > 1]
            checkpoints = await self._session.run(store.checkpoints(retried)) if retried else {}
            self._hand_in(later, checkpoints, since=since, marked=marked)

    def _hand_in(self, jobs: list[Claimed], checkpoints: Mapping[UUID, bytes], *, since: float, marked: bool) -> None:
        if jobs:
            self._leases.hold((job.token for job in jobs), since=since)
            if self._tallies is not None:
                self._tallies.claimed(jobs, since)
            self._slots.take(sorted(jobs, key=_IN_ORDER), checkpoints, marked=marked)
            self._idling.interrupt()
            self._suspect_last = any(job.alone_s > 0 for job in jobs)
            self._slots.hand_out()

    async def _without_known_killers(self, jobs: list[Claimed], asking: Container[str]) -> list[Claimed]:
        """Quarantine jobs whose task and arguments have killed under other ids, for the tasks that ask for it."""
        tokens = [job.token for job in jobs if job.task in asking]
        quarantined = await self._session.run(store.convict(self._worker_id, tokens)) if tokens else []
        return [job for job in jobs if job.id not in quarantined] if quarantined else jobs
