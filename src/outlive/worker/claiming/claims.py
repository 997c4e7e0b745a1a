"""The claim loop, the heart of a worker: it writes how attempts ended, claims the next jobs, and begins them.

Jobs wait in lanes, one for each queue, source, task and priority. In each turn the worker makes an offer: how many
jobs it can take, and from which lanes. A claim takes the offer to the database (`Choice` says which one), and the jobs
that come back go to the slots. Nothing else uses the loop's connection.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from outlive.worker.attempts.reconciliation import Reconciliation
from outlive.worker.claiming.choice import Choice
from outlive.worker.claiming.handover import Handover
from outlive.worker.claiming.lane_finder import LaneFinder, Sleep
from outlive.worker.claiming.sources import SourceOutcomes
from outlive.worker.wakeup import Wakeup


@dataclass(slots=True, kw_only=True)
class ClaimLoop:
    wake: Wakeup
    reconciliation: Reconciliation
    outcomes: SourceOutcomes
    finder: LaneFinder
    choice: Choice
    handover: Handover
    sleep: Sleep
    turned_at: float = field(default_factory=time.monotonic)

    async def run_once(self) -> None:
        """One turn: write the ends that wait, claim as many jobs as there is room for, and begin them; or sleep."""
        self.wake.clear()  # First: whatever happens from now on wakes the next turn.
        await self.choice.gather_ends()
        self.turned_at = time.monotonic()
        with self.reconciliation.due_if_this_fails():
            recovered = await self.reconciliation.run_if_due()
            await self.handover.begin(recovered, since=self.turned_at, begun=False)
            await self.outcomes.write_if_due()
            await self.finder.search_if_due()
            claim, offer = self.choice.next()
            if claim is None:
                await self.sleep.until_needed()
            else:
                claimed = await claim.claim(offer)
                await self.handover.begin(claimed, since=self.turned_at, begun=offer.begun)
