"""How a worker waits for work.

It marks itself asleep in the database before its last search for work, and enqueue notifies workers that are asleep: no
job goes unnoticed. A busy worker is not marked, so that enqueue need not notify it.
"""

from __future__ import annotations

import time
from uuid import UUID

from outlive import store
from outlive.worker.claiming.lane_finder import LOOK_S, LaneFinder
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

PAUSES_S = (0.005, 0.02, 0.08, 0.32, LOOK_S)


class Sleep:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, finder: LaneFinder, wake: Wakeup) -> None:
        self._worker, self._session = worker, session
        self._slots, self._finder, self._wake = slots, finder, wake
        self._marked_in: int | None = None
        """The connection by which this worker is marked as asleep. A server that has crashed has lost the mark."""
        self._slept_until = 0.0
        self._pauses = 0

    async def interrupt(self) -> None:
        """There is work: the next pauses are short, and a worker that stays busy is not marked any more."""
        self._pauses = 0
        if self._marked_in is not None and time.monotonic() - self._slept_until > LOOK_S:
            await self._session.run(store.wake(self._worker))
            self._marked_in = None

    async def until_needed(self) -> None:
        """Wait until there may be something to do."""
        if not self._slots.capacity():
            await self.interrupt()
            await self._wake.wait(LOOK_S)
        elif self._marked_in != self._session.generation:
            await self._session.run(store.sleep(self._worker))
            self._marked_in = self._session.generation
            self._wake.look = self._wake.look_at_sources = True
            self._wake.follow.set()  # While it was not marked, notes were left without a notification.
            self._slept_until = time.monotonic()
        else:
            pause_s = min(PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)], self._finder.pause_s())
            self._pauses += 1
            self._slept_until = time.monotonic() + pause_s
            await self._wake.wait(pause_s)
