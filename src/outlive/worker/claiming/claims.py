"""The claim loop, the heart of a worker: it writes how attempts ended, claims the next jobs, and begins them.

Jobs wait in lanes, one for each queue, source, task and priority. In each turn the worker makes an offer: how many
jobs it can take, and from which lanes. One of three claims takes it to the database: `EndAndClaim`, in the statement
that also writes ends (end_and_claim, which calls outlive.claim_lanes); `SourcedClaim`, for jobs of sources, which have
limits of their own; `SuspectClaim`, for a job that may kill its worker and so runs alone. Nothing else uses the loop's
connection.
"""

from __future__ import annotations

import asyncio
import time
from operator import attrgetter
from typing import Protocol
from uuid import UUID

from outlive import store
from outlive.config import Config
from outlive.metrics.tallies import Tallies
from outlive.model import Claimed
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.reconciliation import Reconciliation
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.end_and_claim import EndAndClaim
from outlive.worker.claiming.lane_finder import LaneFinder, Sleep
from outlive.worker.claiming.offers import NOTHING, Offer, offered
from outlive.worker.claiming.sources import SourcedClaim, SourceOutcomes
from outlive.worker.claiming.suspects import SuspectClaim
from outlive.worker.ending.outbox import Outbox
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

MANY_ENDS = 512
"""With this many ends the loop writes at once."""
GATHER_S = 0.005
"""How long a busy worker with fewer ends waits for more: one statement for many costs little more than for one."""
_IN_ORDER = attrgetter("priority", "ready_at")


class Claim(Protocol):
    async def claim(self, offer: Offer, /) -> list[Claimed]: ...


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
        tallies: Tallies | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._worker, self._session, self._slots, self._leases = worker, session, slots, leases
        self._outbox, self._outcomes, self._wake, self._tallies = outbox, sources, wake, tallies
        self._finder = LaneFinder(session, wake, slots, config.queues)
        self._end_and_claim = EndAndClaim(worker, session, outbox, self._finder.lanes)
        self._sourced = SourcedClaim(worker, session, self._end_and_claim, self._finder.lanes, config.lease_s)
        self.suspect = SuspectClaim(worker, config, session, slots, self._finder)
        self._bounds = bounds or Bounds()
        self._sleep = Sleep(worker, session, slots=slots, finder=self._finder, wake=wake, bounds=self._bounds)
        self._reconciliation = Reconciliation(worker, config, session, slots=slots, leases=leases, outbox=outbox)
        self.turned_at = time.monotonic()

    async def run_once(self) -> None:
        """One turn: write the ends that wait, claim as many jobs as there is room for, and begin them; or sleep."""
        self.turned_at = time.monotonic()
        self._wake.clear()  # First: whatever happens from now on wakes the next turn.
        await self._gather_ends()
        with self._reconciliation.due_if_this_fails():
            await self._catch_up()
            offer, asked_at = self._offer(), time.monotonic()
            if claim := self._choose(offer):
                claimed = await claim.claim(offer)
                self._bounds.count(len(claimed))
                await self._begin(claimed, asked_at=asked_at, begun=offer.begun)
            else:
                await self._sleep.until_needed()

    async def _gather_ends(self) -> None:
        """Let more ends come, if all children have enough to do meanwhile."""
        self._slots.place()  # Jobs that wait here begin before those that are claimed next.
        if len(self._outbox.waiting) < MANY_ENDS and self._slots.room.is_filled():
            await asyncio.sleep(GATHER_S)

    async def _catch_up(self) -> None:
        """What comes before a claim: reconcile if it is due, count how calls of sources went, search for lanes."""
        await self._session.connect()
        if self._reconciliation.due:
            asked_at = time.monotonic()
            unknown = await self._reconciliation.run_once()
            # These were claimed by a statement whose answer was lost: they may not count as begun.
            await self._begin(unknown, asked_at=asked_at, begun=False)
            self._reconciliation.done(asked_at)
        await self._outcomes.write_once_due(self._session)
        await self._finder.search_if_due()

    def _offer(self) -> Offer:
        """As many jobs as there is room for. Nothing while a suspect waits for this worker to be empty, while too many
        ends are written one by one, and while jobs that this worker has lost still run in it."""
        if self.suspect.making_room or self._outbox.slow.too_much or self._reconciliation.waits_for_disowned:
            return NOTHING
        return self._bounds.limit(offered(self._finder.lanes, self._slots))

    def _choose(self, offer: Offer) -> Claim | None:
        """The claim of this turn. None: there is nothing to claim, and no end to write."""
        if self._bounds.left != 0 and self.suspect.may_begin(others_wait=bool(offer.lanes)):
            return self.suspect
        if offer.sourced:
            return self._sourced
        return self._end_and_claim if offer.lanes or self._outbox.waiting else None

    async def _begin(self, claimed: list[Claimed], *, asked_at: float, begun: bool) -> None:
        """Give claimed jobs to the slots. `begun`: the database counts them as begun.

        Leases count from before the claim, so this worker never trusts one for longer than the database does.
        """
        if not (jobs := await self._without_known_killers(claimed)):
            return
        checkpoints = await self._checkpoints(jobs)
        self._leases.hold((job.token for job in jobs), since=asked_at)
        if self._tallies is not None:
            self._tallies.claimed(jobs, asked_at)
        self._slots.accept(sorted(jobs, key=_IN_ORDER), checkpoints, marked=begun)
        await self._sleep.interrupt()

    async def _without_known_killers(self, jobs: list[Claimed]) -> list[Claimed]:
        """Quarantine jobs whose task and arguments have killed under other ids, for the tasks that ask for it."""
        asking = {name for name, facts in self._slots.tasks.items() if facts.by_fingerprint}
        tokens = [job.token for job in jobs if job.task in asking]
        quarantined = await self._session.run(store.convict(self._worker, tokens)) if tokens else []
        return [job for job in jobs if job.id not in quarantined] if quarantined else jobs

    async def _checkpoints(self, jobs: list[Claimed]) -> dict[UUID, bytes]:
        retried = [job.id for job in jobs if job.attempt > 1]
        return await self._session.run(store.checkpoints(retried)) if retried else {}
