"""Jobs whose waits are over, and whose processes this worker has kept: they are claimed, and go on where they are."""

from __future__ import annotations

import time
from uuid import UUID

from outlive import store
from outlive.model import Claimed
from outlive.protocol import Waited
from outlive.worker.claiming.offers import Offer
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup


class ParkedClaim:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, wake: Wakeup) -> None:
        self._worker, self._session = worker, session
        self._slots, self._leases, self._wake = slots, slots.leases, wake

    def may_begin(self) -> bool:
        return (
            self._wake.resumable and not self._slots.closed and self._slots.free > 0 and self._slots.suspect() is None
        )

    async def claim(self, _: Offer) -> list[Claimed]:
        """Claim jobs whose waits are over. Returns those whose processes are gone meanwhile."""
        self._wake.resumable = False
        if not any(child.parked for child in self._slots.children):
            return []
        asked_at, limit = time.monotonic(), self._slots.free
        resumed = await self._session.run(store.resume(self._worker, limit=limit, lease_s=self._leases.lease_s))
        self._wake.resumable = len(resumed) == limit
        self._leases.hold((one.job.token for one in resumed), since=asked_at)
        return [
            job
            for job, received, value in resumed
            if not self._slots.parking.resume(job, Waited(job.token, job.attempt, received, value))
        ]
