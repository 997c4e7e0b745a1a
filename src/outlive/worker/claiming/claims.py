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
from dataclasses import dataclass, field
from typing import Protocol

from outlive.model import Claimed
from outlive.worker.attempts.reconciliation import Reconciliation
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.end_and_claim import EndAndClaim
from outlive.worker.claiming.handover import Handover
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


class Claim(Protocol):
    async def claim(self, offer: Offer, /) -> list[Claimed]: ...


@dataclass(slots=True, kw_only=True)
class ClaimLoop:
    session: Session
    slots: Slots
    outbox: Outbox
    wake: Wakeup
    bounds: Bounds
    finder: LaneFinder
    end_and_claim: EndAndClaim
    sourced: SourcedClaim
    suspect: SuspectClaim
    outcomes: SourceOutcomes
    reconciliation: Reconciliation
    handover: Handover
    sleep: Sleep
    turned_at: float = field(default_factory=time.monotonic)

    async def run_once(self) -> None:
        """One turn: write the ends that wait, claim as many jobs as there is room for, and begin them; or sleep."""
        self.turned_at = time.monotonic()
        self.wake.clear()  # First: whatever happens from now on wakes the next turn.
        await self._gather_ends()
        with self.reconciliation.due_if_this_fails():
            await self._catch_up()
            offer, asked_at = self._offer(), time.monotonic()
            if claim := self._choose(offer):
                claimed = await claim.claim(offer)
                self.bounds.count(len(claimed))
                await self.handover.begin(claimed, asked_at=asked_at, begun=offer.begun)
            else:
                await self.sleep.until_needed()

    async def _gather_ends(self) -> None:
        """Let more ends come, if all children have enough to do meanwhile."""
        self.slots.place()  # Jobs that wait here begin before those that are claimed next.
        if len(self.outbox.waiting) < MANY_ENDS and self.slots.room.is_filled():
            await asyncio.sleep(GATHER_S)

    async def _catch_up(self) -> None:
        """What comes before a claim: reconcile if it is due, count how calls of sources went, search for lanes."""
        await self.session.connect()
        if self.reconciliation.due:
            asked_at = time.monotonic()
            unknown = await self.reconciliation.run_once()
            # These were claimed by a statement whose answer was lost: they may not count as begun.
            await self.handover.begin(unknown, asked_at=asked_at, begun=False)
            self.reconciliation.done(asked_at)
        await self.outcomes.write_once_due(self.session)
        await self.finder.search_if_due()

    def _offer(self) -> Offer:
        """As many jobs as there is room for. Nothing while a suspect waits for this worker to be empty, while too many
        ends are written one by one, and while jobs that this worker has lost still run in it."""
        if self.suspect.making_room or self.outbox.slow.too_much or self.reconciliation.waits_for_disowned:
            return NOTHING
        return self.bounds.limit(offered(self.finder.lanes, self.slots))

    def _choose(self, offer: Offer) -> Claim | None:
        """The claim of this turn. None: there is nothing to claim, and no end to write."""
        if self.bounds.left != 0 and self.suspect.may_begin(others_wait=bool(offer.lanes)):
            return self.suspect
        if offer.sourced:
            return self.sourced
        return self.end_and_claim if offer.lanes or self.outbox.waiting else None
