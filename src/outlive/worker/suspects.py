"""Suspects: jobs that ran when several workers died. They begin alone in the next one.

Nothing else is claimed while a suspect is alone. When its time is over the database is told first, and only then may
other jobs begin beside it: `alone` in the database always means that nothing was beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from uuid import UUID

import psycopg

from outlive import store
from outlive.config import Config
from outlive.worker.claims import ClaimLoop
from outlive.worker.session import Session
from outlive.worker.slots import Slots
from outlive.worker.wakeup import Wakeup

LOOK_S = 0.25
WAITING_LOOK_S = 5.0
"""How often a worker checks whether a suspect has waited too long."""
MAKE_ROOM_AFTER_S = 60.0
ROOM_S = 60.0
"""How long a worker stops claiming to make room, at most, and how long it then claims before it may stop again."""
_ROOM = "outlive suspects"

_log = logging.getLogger("outlive.worker")


class Suspects:
    def __init__(
        self, worker: UUID, config: Config, session: Session, *, slots: Slots, claims: ClaimLoop, wake: Wakeup
    ) -> None:
        self._worker, self._config, self._session = worker, config, session
        self._slots, self._claims, self._wake = slots, claims, wake
        self._ask_at = time.monotonic() + WAITING_LOOK_S

    async def run_once(self) -> None:
        await asyncio.sleep(LOOK_S)
        await self._let_others_in()
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + WAITING_LOOK_S
            await self._make_room()

    async def _let_others_in(self) -> None:
        """End the time alone of a suspect that has survived it."""
        one = self._slots.suspect()
        if one is None or time.monotonic() - (one.started or one.taken) < one.job.alone_s:
            return
        if await self._session.run(store.let_others_in(self._worker, one.job.token)):
            one.alone = False
            _log.info("job %s survived its time alone: other jobs run beside it now", one.job.id)
            self._wake.notify()

    async def _make_room(self) -> None:
        """Claim nothing for a while, so that this worker becomes idle and can claim a suspect. One worker at a time."""
        if self._session.pooled or self._slots.closed or self._slots.suspect() is not None:
            return
        if not await self._one_waits() or not await self._session.run(store.try_lock(_ROOM)):
            return
        _log.warning("a job that may kill workers has waited too long: this worker makes room to run it alone")
        until = time.monotonic() + ROOM_S
        self._claims.making_room = True
        try:
            while self._claims.making_room and time.monotonic() < until and not self._slots.closed:
                await asyncio.sleep(LOOK_S)
                if not await self._one_waits():
                    return
        finally:
            self._claims.making_room = False
            self._ask_at = time.monotonic() + ROOM_S
            self._wake.notify()
            with contextlib.suppress(psycopg.Error):  # A broken connection has released the lock.
                await self._session.run(store.unlock(_ROOM))

    async def _one_waits(self) -> bool:
        tasks, queues = list(self._slots.tasks), self._config.queues
        return await self._session.run(store.suspects_wait(tasks, queues, after_s=MAKE_ROOM_AFTER_S))
