"""The liveness session: a connection that only listens, and holds the lock by which other workers see this one.

The server releases the lock within milliseconds when this process dies, whatever killed it. A worker that loses the
session without dying (the server restarted, an operator ended a backend) opens a new one at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from uuid import UUID

import psycopg

from outlive import db, embedded, store
from outlive.worker.session import Session

BEHIND_A_POOLER = (
    "the database is behind a pooler in transaction mode: other workers notice the death of this one only when its "
    "heartbeat is missed (after two minutes) or its leases expire (after five), and it finds new jobs by polling every "
    "second; give workers an address that bypasses the pooler"
)

_log = logging.getLogger("outlive.worker")


class Liveness:
    def __init__(self, worker: UUID, url: str, notify: Callable[[str], None]) -> None:
        self._worker, self._notify = worker, notify
        self._session = Session(url, db.LIVENESS)
        self._shown = self._warned = False

    async def show(self) -> None:
        """Open a session and take the lock in it, before the first claim."""
        self._shown = False
        await self.close()
        await asyncio.to_thread(embedded.repair, self._session.url)  # An embedded server has no other guard.
        connection = await self._session.connect()
        if not connection.pooled:
            while not await db.arun(connection, store.show_life(self._worker, secrets.randbits(63))):
                pass
        elif not self._warned:
            self._warned = True
            _log.warning(BEHIND_A_POOLER)
        self._shown = True

    async def run_once(self) -> None:
        """Hold the lock, and listen for notifications of enqueue, as long as the session lasts."""
        if not self._shown:
            await self.show()
        connection = await self._session.connect()
        self._shown = False  # However this ends, the next run needs a new session.
        await connection.execute("listen outlive")
        self._notify("")  # For what was enqueued before this session listened.
        try:
            async for notification in connection.notifies():
                self._notify(notification.payload)
        except psycopg.OperationalError as error:
            # No pause: without a new session, other workers declare this one dead in half a second.
            self._session.note_loss(error)

    def hang_up(self) -> None:
        self._session.hang_up()

    async def close(self) -> None:
        await self._session.close()
