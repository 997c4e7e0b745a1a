"""Tells the database which of the jobs that were claimed ahead have begun.

A worker's death is charged only to jobs that have begun.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from outlive import store
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

EVERY_S = 0.1


class BegunMarks:
    def __init__(self, worker: UUID, session: Session, slots: Slots) -> None:
        self._worker, self._session, self._slots = worker, session, slots

    async def run_once(self) -> None:
        await asyncio.sleep(EVERY_S)
        if begun := self._slots.unmarked():
            marked = await self._session.run(store.mark_begun(self._worker, [one.job.token for one in begun]))
            for one in begun:
                one.marked = one.job.token in marked
