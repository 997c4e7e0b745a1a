"""Sources: their jobs are claimed as far as they admit them, and the outcomes of calls wait here to be counted."""

from __future__ import annotations

import time
from uuid import UUID

from outlive import store
from outlive.model import Claimed, Ended
from outlive.worker.claiming.lanes import Lanes
from outlive.worker.claiming.offers import NOTHING, Offer
from outlive.worker.ending.outbox import Outbox
from outlive.worker.session import Session

MAX_OUTCOMES = 10_000
AGAIN_S = 0.5
"""How long the outcomes of a source wait that another transaction has locked."""


class SourcedClaim:
    """Claims jobs of one source after the other, as many as each source admits."""

    def __init__(self, worker: UUID, session: Session, outbox: Outbox, lanes: Lanes) -> None:
        self._worker, self._session, self._outbox, self._lanes = worker, session, outbox, lanes

    async def claim(self, offer: Offer) -> list[Claimed]:
        if self._outbox.waiting:
            await self._outbox.claim(NOTHING)
        lease_s = self._outbox.leases.lease_s
        admitted = await self._session.run(
            store.claim_sourced(self._worker, offer.lanes, limit=offer.limit, lease_s=lease_s)
        )
        self._lanes.wait(admitted.waits_s, time.monotonic())
        return admitted.claimed


class SourceOutcomes:
    """How calls of sources went, until the sources' breakers and rates have counted them."""

    def __init__(self) -> None:
        self._outcomes: list[tuple[str, int | None, bool | None]] = []
        self._not_before = 0.0

    def note(self, source: str, end: Ended) -> None:
        if source and end.source_ok is not None:
            self._outcomes.append((source, end.token, end.source_ok))

    async def write_once_due(self, session: Session) -> None:
        if self._outcomes and time.monotonic() > self._not_before:
            await self.write(session)

    async def write(self, session: Session) -> None:
        """Count what can be counted now. Outcomes of locked sources stay, at most the newest 10,000."""
        written = list(self._outcomes)
        uncounted = await session.run(store.count_outcomes(written, patient=False))
        left = [written[n - 1] for n in uncounted] + self._outcomes[len(written) :]
        self._outcomes = left[-MAX_OUTCOMES:]
        self._not_before = time.monotonic() + (AGAIN_S if uncounted else 0.0)
