"""The liveness session: a connection that only listens, and holds the lock by which others know that this worker lives.

The server gives the lock back within milliseconds when this process dies, whatever killed it. A worker that loses the
session without dying (the server restarted, somebody killed a backend) takes a new one at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from uuid import UUID

import psycopg

from outlive import db, embedded, kernel, store

_log = logging.getLogger("outlive.worker")


class Liveness:
    def __init__(self, worker: UUID, url: str, heard: Callable[[], None]) -> None:
        self.worker, self.url, self.heard = worker, url, heard
        self._connection: db.AsyncConnection | None = None
        self._shown = False
        self._warned = False

    async def show(self) -> None:
        """Take a session, and hold the lock in it: before the first claim, so that nobody has a job unseen."""
        self._shown = False
        await self.close()
        await asyncio.to_thread(embedded.repair, self.url)  # Nobody else would, if it is ours.
        self._connection = await db.aconnect(self.url, watched=True)
        if db.pooled(self._connection):
            self._warn()
        else:
            while not await db.arun(self._connection, store.show_life(self.worker, secrets.randbits(63))):
                pass
        self._shown = True

    async def run_once(self) -> None:
        """Show that this worker lives, and hear when something is put into the queue, as long as the session holds."""
        if not self._shown:
            await self.show()
        assert self._connection is not None
        self._shown = False  # Whatever happens now, the next time needs another.
        await self._connection.execute("listen outlive")
        self.heard()  # Nobody heard what came meanwhile.
        try:
            async for _ in self._connection.notifies():
                self.heard()
        except psycopg.OperationalError as error:
            # All was well until now, so there is no pause: in half a second others may think that this worker is dead.
            _log.warning("the liveness session is lost, and another is taken: %s", str(error).strip())

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "there is a pooler in transaction mode before the database: nobody sees at once when this worker dies, "
                "its jobs wait until its heartbeat is missed (two minutes) or their lease ends (five); new jobs are "
                "found by looking every second; give workers an address past the pooler"
            )

    def hang_up(self) -> None:
        if self._connection is not None and not self._connection.closed:
            kernel.hang_up(self._connection.fileno())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
