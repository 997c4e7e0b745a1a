"""Idling: how a worker waits for work.

An idle worker tells the database that it sleeps, and enqueue then notifies it. It marks itself asleep before its last
look for work, so no job goes unnoticed. A busy worker is not marked: enqueue need not notify it.
"""

from __future__ import annotations

import time
from uuid import UUID

from outlive import store
from outlive.worker.lane_finder import LOOK_S, LaneFinder
from outlive.worker.session import Session
from outlive.worker.slots import Slots
from outlive.worker.wakeup import Wakeup

PAUSES_S = (0.005, 0.02, 0.08, 0.32, LOOK_S)


class Idling:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, finder: LaneFinder, wake: Wakeup) -> None:
        self._worker, self._session = worker, session
        self._slots, self._finder, self._wake = slots, finder, wake
        self._asleep = False
        """The database has marked this worker as asleep."""
        self._rested_until = 0.0
        self._pauses = 0

    def forget(self) -> None:
        """The connection is new: a server that has crashed has lost the mark."""
        self._asleep = False

    def interrupt(self) -> None:
        """There was work: the next pauses are short."""
        self._pauses = 0

    async def unmark_if_busy(self) -> None:
        if self._asleep and time.monotonic() - self._rested_until > LOOK_S:
            await self._session.run(store.wake(self._worker))
            self._asleep = False

    async def rest(self) -> None:
        """Wait until there may be something to do."""
        pause_s = LOOK_S
        if self._slots.capacity():
            if not self._asleep:
                await self._session.run(store.sleep(self._worker))
                self._asleep = self._wake.look = self._wake.look_at_sources = True
                self._wake.follow.set()  # While it was not marked, notes were left without a notification.
                self._rested_until = time.monotonic()
                return
            pause_s = min(PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)], self._finder.pause_s())
            self._pauses += 1
            self._rested_until = time.monotonic() + pause_s
        await self._wake.wait(pause_s)
