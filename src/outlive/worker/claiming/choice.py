"""What a worker asks for in a turn: how many jobs, from which lanes, and by which claim."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from outlive.model import Claimed
from outlive.worker.attempts.reconciliation import Reconciliation
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.end_and_claim import EndAndClaim
from outlive.worker.claiming.lanes import Lanes
from outlive.worker.claiming.offers import NOTHING, Offer, offered
from outlive.worker.claiming.parked import ParkedClaim
from outlive.worker.claiming.suspects import SuspectClaim
from outlive.worker.ending.outbox import Outbox
from outlive.worker.processes.slots import Slots

MANY_ENDS = 512
"""With this many ends the loop writes at once."""
GATHER_S = 0.005
"""How long a busy worker with fewer ends waits for more: one statement for many costs little more than for one."""


class Claimer(Protocol):
    async def claim(self, offer: Offer, /) -> list[Claimed]: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that is due, with what it may take."""

    by: Claimer
    offer: Offer

    async def make(self) -> list[Claimed]:
        return await self.by.claim(self.offer)


@dataclass(slots=True, kw_only=True)
class Choice:
    slots: Slots
    outbox: Outbox
    lanes: Lanes
    bounds: Bounds
    reconciliation: Reconciliation
    parked: ParkedClaim
    suspect: SuspectClaim
    end_and_claim: EndAndClaim

    async def gather_ends(self) -> None:
        """Let more ends come, if all children have enough to do meanwhile."""
        self.slots.place()  # Jobs that wait here begin before those that are claimed next.
        if len(self.outbox.waiting) < MANY_ENDS and self.slots.room.is_filled():
            await asyncio.sleep(GATHER_S)

    def next(self) -> Claim | None:
        """The next claim. None: there is nothing to claim, and no end to write.

        1. A parked job goes on first: it has begun, and its process takes memory here for as long as it is parked.
        2. A suspect needs an idle worker. If other jobs came first, a busy worker would never run it. So it comes
           before them, and they come before the next suspect.
        3. The last also writes ends that wait, so it is made without lanes too.
        """
        offer = self._offer()
        if self.parked.may_begin():
            return Claim(self.parked, offer)
        if self.suspect.may_begin(others_wait=bool(offer.lanes)):
            return Claim(self.suspect, offer)
        return Claim(self.end_and_claim, offer) if offer.lanes or self.outbox.waiting else None

    def _offer(self) -> Offer:
        """As many jobs as there is room for. Nothing while a suspect waits for this worker to be empty, while too many
        ends are written one by one, and while jobs that this worker has lost still run in it."""
        if self.suspect.making_room or self.outbox.slow.too_much or self.reconciliation.waits_for_disowned:
            return NOTHING
        return self.bounds.limit(offered(self.lanes, self.slots))
