"""Taking back: a worker that gave up attempts because it could not renew their leases charges no job for it.

Usually the worker releases them itself when the database is back. But a reaper may have come first and ended them as
lost, because their leases had expired.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from outlive import store
from outlive.worker.leases import Leases
from outlive.worker.session import Session

LOOK_S = 0.5

_log = logging.getLogger("outlive.worker")


class TakingBack:
    def __init__(self, worker: UUID, session: Session, leases: Leases) -> None:
        self._worker, self._session, self._leases = worker, session, leases

    async def run_once(self) -> None:
        await asyncio.sleep(LOOK_S)
        ended = self._leases.given_up - self._leases.tokens  # Of the others the end is not written yet.
        if ended:
            if taken := await self._session.run(store.take_back(self._worker, ended)):
                _log.warning("%d losses were taken back: their leases could not be renewed in time", taken)
            self._leases.given_up -= ended
