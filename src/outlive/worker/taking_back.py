"""Taking back: no job is charged for a lease that its living worker could not renew.

Usually the worker gives such attempts up and releases them itself when the database is back. But a reaper may have come
first and ended them as lost. If a job has stopped this process, these losses stand: nothing else can be charged to it.
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
        self.stalled_by_a_job = False
        """A job has stopped this process, and continued it."""

    async def run_once(self) -> None:
        await asyncio.sleep(LOOK_S)
        ended = self._leases.not_kept - self._leases.tokens  # Of the others the end is not written yet.
        if not ended:
            return
        if not self.stalled_by_a_job and (taken := await self._session.run(store.take_back(self._worker, ended))):
            _log.warning("%d losses were taken back: their leases could not be renewed in time", taken)
        self._leases.not_kept -= ended
