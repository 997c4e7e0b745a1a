"""The claim loop, the heart of a worker: it writes how attempts ended, claims the next jobs, and begins them.

There are three kinds of claims, each an object with a `claim`: `Outbox` claims jobs in the statement that writes ends,
`SourcedClaim` jobs of sources, and `SuspectClaim` a job that must run alone. Nothing else uses the loop's connection.
"""

from __future__ import annotations

import asyncio
import time
from operator import attrgetter
from uuid import UUID

from outlive import store
from outlive.config import Config
from outlive.metrics.tallies import Tallies
from outlive.model import Claimed
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.reconciliation import Reconciliation
from outlive.worker.claiming.lane_finder import LaneFinder
from outlive.worker.claiming.offers import NOTHING, Offer, offered
from outlive.worker.claiming.sleep import Sleep
from outlive.worker.claiming.sources import SourcedClaim, SourceOutcomes
from outlive.worker.claiming.suspects import SuspectClaim
from outlive.worker.wakeup import Wakeup
from outlive.worker.ending.outbox import Outbox
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

MANY_ENDS = 512
"""With this many ends the loop writes at once."""
GATHER_S = 0.005
"""How long a busy worker with fewer ends waits for more: one statement for many costs little more than for one."""

_IN_ORDER = attrgetter("priority", "ready_at")


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
    ) -> None:
        self._worker, self._session, self._slots, self._leases = worker, session, slots, leases
        self._outbox, self._outcomes, self._wake, self._tallies = outbox, sources, wake, tallies
        self._finder = LaneFinder(session, wake, slots, config.queues)
        self._sourced = SourcedClaim(worker, session, outbox, self._finder.lanes)
        self.suspect = SuspectClaim(worker, config, session, slots, self._finder)
        self._sleep = Sleep(worker, session, slots=slots, finder=self._finder, wake=wake)
        self._reconciliation = Reconciliation(worker, config, session, slots=slots, leases=leases, outbox=outbox)
        self.turned_at = time.monotonic()

    async def run_once(self) -> None:
        """One turn: write the ends that wait, claim as many jobs as there is room for, and begin them; or sleep."""
        self.turned_at = time.monotonic()
        self._wake.clear()  # First: whatever happens from now on wakes the next turn.
        await self._gather_ends()
        with self._reconciliation.due_if_this_fails():
            await self._reconcile()
            await self._outcomes.write_once_due(self._session)
            await self._finder.search_if_due()
            offer, asked_at = self._offer(), time.monotonic()
            if self.suspect.may_begin(others_wait=bool(offer.lanes)):
                jobs = await self.suspect.claim()
            elif offer.lanes or self._outbox.waiting:
                jobs = await (self._sourced if offer.sourced else self._outbox).claim(offer)
                self._finder.lanes.claimed(offer.lanes, jobs, offer.limit)
            else:
                await self._sleep.until_needed()
                return
            await self._begin(jobs, asked_at=asked_at, begun=offer.begun)

    async def _gather_ends(self) -> None:
        self._slots.place()
        if len(self._outbox.waiting) < MANY_ENDS and self._slots.room.is_filled():
            await asyncio.sleep(GATHER_S)

    async def _reconcile(self) -> None:
        await self._session.connect()
        if self._reconciliation.due:
            asked_at = time.monotonic()
            unknown = await self._reconciliation.run_once()
            await self._begin(unknown, asked_at=asked_at, begun=False)
            self._reconciliation.done(asked_at)

    def _offer(self) -> Offer:
        if self.suspect.making_room or self._outbox.slow.too_much or self._reconciliation.waits_for_disowned:
            return NOTHING
        return offered(self._finder.lanes, self._slots)

    async def _begin(self, jobs: list[Claimed], *, asked_at: float, begun: bool) -> None:
        """Give claimed jobs to the slots. `begun`: the database counts them as begun.

        Leases count from before the claim, so this worker never trusts one for longer than the database does.
        """
        jobs = await self._without_known_killers(jobs)
        if not jobs:
            return
        retried = [job.id for job in jobs if job.attempt > 1]
        checkpoints = await self._session.run(store.checkpoints(retried)) if retried else {}
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
