"""The claim loop, the heart of a worker: it writes how attempts ended, claims the next jobs, and begins them.

Jobs wait in lanes, one for each queue, source, task and priority. In each turn the worker makes an offer: how many
jobs it can take, and from which lanes. A claim takes the offer to the database (`Choice.next` says which one, and why),
and the jobs that come back go to the slots. Five words say how a job can differ from a plain one:

- parked: it waits for a time or a signal, and its process stays here meanwhile. It goes on in that process.
- suspect: it ran when several workers died. It begins alone in a worker, so that the next death names the culprit.
- sourced: it calls a service with limits of its own. The statement that claims it asks the source first.
- begun: its code may run. If the worker dies, that counts against this job, but not against one still in a queue here.
- disowned: it runs here, but the database no longer has it under this worker. Its process is killed.

The loop has a connection for itself, so a claim never waits behind a statement of another service.
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
        self.wake.clear()  # First: what happens during this turn, too late for it to see, wakes the next one.
        await self.choice.gather_ends()
        # Leases count from here. The database counts from the claim, which is later, so this worker stops trusting a
        # lease before another worker may take the job.
        self.turned_at = time.monotonic()
        # If a statement fails, its transaction may be committed all the same. The next turn reads which attempts the
        # database has for this worker, and begins those whose claim was not answered.
        with self.reconciliation.due_if_this_fails():
            recovered = await self.reconciliation.run_if_due()
            await self.handover.begin(recovered, since=self.turned_at, begun=False)
            await self.outcomes.write_if_due()
            await self.finder.search_if_due()
            claim = self.choice.next()
            if claim is None:
                await self.sleep.until_needed()
            else:
                claimed = await claim.make()
                await self.handover.begin(claimed, since=self.turned_at, begun=claim.offer.begun)
