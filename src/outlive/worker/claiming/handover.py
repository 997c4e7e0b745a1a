"""Claimed jobs on their way to the slots: known killers are held back, and retries get what earlier attempts kept."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from uuid import UUID

from outlive import store
from outlive.metrics.tallies import Tallies
from outlive.model import Claimed
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.lane_finder import Sleep
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

_IN_ORDER = attrgetter("priority", "ready_at")


@dataclass(slots=True, kw_only=True)
class Handover:
    worker: UUID
    session: Session
    slots: Slots
    bounds: Bounds
    sleep: Sleep
    tallies: Tallies | None

    async def begin(self, claimed: list[Claimed], *, since: float, begun: bool) -> None:
        """Give claimed jobs to the slots. `begun`: the database counts them as begun.

        Leases count from `since`, before the claim: this worker never trusts one for longer than the database does.
        """
        if not (jobs := await self._without_known_killers(claimed)):
            return
        kept = await self._kept(jobs)
        self.slots.leases.hold((job.token for job in jobs), since=since)
        self.bounds.count(len(jobs))
        if self.tallies is not None:
            self.tallies.claimed(jobs, since)
        self.slots.accept(sorted(jobs, key=_IN_ORDER), kept, marked=begun)
        await self.sleep.interrupt()

    async def _without_known_killers(self, jobs: list[Claimed]) -> list[Claimed]:
        """Quarantine jobs whose task and arguments have killed under other ids, for the tasks that ask for it."""
        asking = {name for name, facts in self.slots.tasks.items() if facts.by_fingerprint}
        tokens = [job.token for job in jobs if job.task in asking]
        quarantined = await self.session.run(store.convict(self.worker, tokens)) if tokens else []
        return [job for job in jobs if job.id not in quarantined] if quarantined else jobs

    async def _kept(self, jobs: list[Claimed]) -> dict[UUID, bytes | None]:
        retried = [job.id for job in jobs if job.attempt > 1]
        return await self.session.run(store.kept_by_jobs(retried)) if retried else {}
