"""The claim loop, the heart of a worker: it writes how attempts ended, claims the next jobs, and begins them.

Jobs wait in lanes, one for each queue, source, task and priority. In each turn the worker makes an offer: how many
jobs it can take, and from which lanes. A claim takes the offer to the database (`_due` says which one, and why), and
the jobs that come back go to the slots. Five words say how a job can differ from a plain one:

- parked: it waits for a time or a signal, and its process stays here meanwhile. It goes on in that process.
- suspect: it ran when several workers died. It begins alone in a worker, so that the next death names the culprit.
- sourced: it calls a service with limits of its own. The statement that claims it asks the source first.
- begun: its code may run. If the worker dies, that counts against this job, but not against one still in a queue here.
- disowned: it runs here, but the database no longer has it under this worker. Its process is killed.

The loop has a connection for itself, so a claim never waits behind a statement of another service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from uuid import UUID

from outlive import store
from outlive.metrics.tallies import Tallies
from outlive.model import Claimed
from outlive.protocol import Waited
from outlive.worker.attempts.renewal import Reconciliation
from outlive.worker.attempts.waits import Waits
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.lane_finder import LaneFinder, Sleep
from outlive.worker.claiming.room import NOTHING, Offer, offered
from outlive.worker.claiming.suspects import Suspects
from outlive.worker.ending.outbox import Outbox
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

MANY_ENDS = 512
"""With this many ends the loop writes at once."""
GATHER_S = 0.005
"""How long a busy worker with fewer ends waits for more: one statement for many costs little more than for one."""
_IN_ORDER = attrgetter("priority", "ready_at")


class ClaimLoop:
    def __init__(
        self,
        worker: UUID,
        session: Session,
        live: Session,
        *,
        slots: Slots,
        outbox: Outbox,
        waits: Waits,
        wake: Wakeup,
        tallies: Tallies | None,
        bounds: Bounds,
    ) -> None:
        self._worker, self._session, self._slots, self._outbox = worker, session, slots, outbox
        finder = self._finder = LaneFinder(session, wake, slots)
        self.lanes = finder.lanes
        self.suspects = Suspects(worker, session, live, slots, finder, wake, bounds)
        self._reconciliation = Reconciliation(worker, session, slots=slots, outbox=outbox)
        self._waits, self._wake, self._tallies, self._bounds = waits, wake, tallies, bounds
        self._sleep = Sleep(worker, session, slots=slots, finder=finder, wake=wake, bounds=bounds)
        self.turned_at = time.monotonic()

    async def run_once(self) -> None:
        """One turn: write the ends that wait, claim as many jobs as there is room for, and begin them; or sleep."""
        self._wake.clear()  # First: what happens during this turn, too late for it to see, wakes the next one.
        await self._gather_ends()
        # Leases count from here. The database counts from the claim, which is later, so this worker stops trusting a
        # lease before another worker may take the job.
        self.turned_at = time.monotonic()
        try:
            recovered = await self._reconciliation.run_if_due()
            await self._begin(recovered, begun=False)
            await self._outbox.sources.write_if_due(self._session)
            await self._finder.search_if_due()
            offer = self._offer()
            if (claim := self._due(offer)) is None:
                await self._sleep.until_needed()
            else:
                await self._begin(await claim(offer), begun=offer.begun)
        except BaseException:
            # The transaction of a statement that failed may be committed all the same. The next turn reads which
            # attempts the database has for this worker, and begins those whose claim was not answered.
            self._reconciliation.unsure = True
            raise

    async def _gather_ends(self) -> None:
        """Let more ends come, if all children have enough to do meanwhile."""
        self._slots.place()  # Jobs that wait here begin before those that are claimed next.
        if len(self._outbox.waiting) < MANY_ENDS and self._slots.room.is_filled():
            await asyncio.sleep(GATHER_S)

    def _offer(self) -> Offer:
        """As many jobs as there is room for. Nothing while a suspect waits for this worker to be empty, while too many
        ends are written one by one, and while jobs that this worker has lost still run in it."""
        if self.suspects.making_room or self._outbox.slow.too_much or self._reconciliation.waits_for_disowned:
            return NOTHING
        return self._bounds.limit(offered(self.lanes, self._slots))

    def _due(self, offer: Offer) -> Callable[[Offer], Awaitable[list[Claimed]]] | None:
        """The next claim. None: there is nothing to claim, and no end to write.

        1. A parked job goes on first: it has begun, and its process takes memory here for as long as it is parked.
        2. A suspect needs an idle worker. If other jobs came first, a busy worker would never run it. So it comes
           before them, and they come before the next suspect.
        3. The last also writes ends that wait, so it is made without lanes too.
        """
        slots = self._slots
        if self._wake.resumable and not slots.closed and slots.free > 0 and slots.suspect() is None:
            return self._claim_parked
        if self.suspects.may_begin(others_wait=bool(offer.lanes)):
            return self.suspects.claim
        if offer.lanes or self._outbox.waiting:
            return partial(self._outbox.write_and_claim, self._session, self.lanes)
        return None

    async def _claim_parked(self, _: Offer) -> list[Claimed]:
        """Claim jobs whose waits are over, and let them go on. Returns those whose processes are gone meanwhile."""
        self._wake.resumable = False
        if not any(child.parked for child in self._slots.children):
            return []
        asked_at, limit, leases = time.monotonic(), self._slots.free, self._slots.leases
        resumed = await self._session.run(store.resume(self._worker, limit=limit, lease_s=leases.lease_s))
        self._wake.resumable = len(resumed) == limit
        leases.hold((job.token for job, _, _ in resumed), since=asked_at)
        return [
            job
            for job, received, value in resumed
            if not self._waits.resume(job, Waited(job.token, job.attempt, received, value))
        ]

    async def _begin(self, claimed: list[Claimed], *, begun: bool) -> None:
        """Give claimed jobs to the slots, with what earlier attempts kept. `begun`: the database counts them as begun.

        Leases count from before the claim: this worker never trusts one for longer than the database does.
        """
        if not (jobs := await self._without_known_killers(claimed)):
            return
        retried = [job.id for job in jobs if job.attempt > 1]
        kept = await self._session.run(store.kept_by_jobs(retried)) if retried else {}
        self._slots.leases.hold((job.token for job in jobs), since=self.turned_at)
        self._bounds.count(len(jobs))
        if self._tallies is not None:
            self._tallies.claimed(jobs, self.turned_at)
        self._waits.end_outdated(jobs)
        self._slots.accept(sorted(jobs, key=_IN_ORDER), kept, marked=begun)
        await self._sleep.interrupt()

    async def _without_known_killers(self, jobs: list[Claimed]) -> list[Claimed]:
        """Quarantine jobs whose task and arguments have killed under other ids, for the tasks that ask for it."""
        asking = {name for name, facts in self._slots.tasks.items() if facts.quarantine_by == "fingerprint"}
        tokens = [job.token for job in jobs if job.task in asking]
        quarantined = await self._session.run(store.convict(self._worker, tokens)) if tokens else []
        return [job for job in jobs if job.id not in quarantined] if quarantined else jobs
