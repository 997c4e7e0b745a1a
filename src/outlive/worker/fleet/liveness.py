"""How a worker shows that it lives: by a connection that only listens and holds a lock, and by a heartbeat.

The server releases the lock within milliseconds when this process dies, whatever killed it. A worker that loses the
session without dying (the server restarted, an operator ended a backend) opens a new one at once.

The heartbeat says the same where no lock can, and more: whether this worker drains, why it can't begin jobs, whether
its last reload failed, and how much memory it uses. Its answer says whether an operator wants the worker to drain or to
reload, and which slots and queues it is to have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import psycopg

from outlive import db, embedded, store
from outlive.worker.limits import memory
from outlive.worker.loops import wait
from outlive.worker.session import Session

BEHIND_A_POOLER = (
    "the database is behind a pooler in transaction mode: other workers notice the death of this one only when its "
    "heartbeat is missed (after two minutes) or its leases expire (after five), and it finds new jobs by polling every "
    "second; give workers an address that bypasses the pooler"
)

FIRST_S = 5.0
"""When the second heartbeat comes at the latest: at the first one, the memory of the app is not measured yet."""
MEASURE_SHARE = 200
"""Measuring the memory of all processes may take this part of the time: the kernel walks through all their pages."""
Then = Callable[[], None]

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


class Heartbeat:
    def __init__(
        self,
        worker: UUID,
        session: Session,
        every_s: float,
        *,
        on_declared_dead: Then,
        on_drain: Then,
        on_reload: Then,
        on_set: Callable[[int, tuple[str, ...] | None], None],
        reload_error: Callable[[], str | None],
    ) -> None:
        self._worker, self._session, self._every_s = worker, session, every_s
        self._on_declared_dead, self._on_drain, self._on_reload = on_declared_dead, on_drain, on_reload
        self._on_set = on_set
        self._reload_error = reload_error
        self.reload_requested_at: datetime | None = None
        """When an operator last asked for a reload."""
        self._reloaded: datetime | None = None
        self._draining = False
        self._trouble: str | None = None
        self._due = asyncio.Event()
        self._memory_bytes: int | None = None
        self._measure_again = 0.0

    def hurry(self) -> None:
        """Send the next heartbeat at once."""
        self._due.set()

    def drain(self) -> None:
        """At once: a SIGKILL may follow the SIGTERM."""
        self._draining = True
        self._due.set()

    def answer_reload(self, requested_at: datetime | None) -> None:
        """The app was imported again, or could not be, after this request of an operator, or a signal."""
        self._reloaded = requested_at
        self._due.set()

    def report_trouble(self, trouble: str | None) -> None:
        self._trouble = trouble
        self._due.set()

    async def beat(self) -> None:
        state = "draining" if self._draining else "active"
        said = self._trouble, self._memory_bytes, self._reloaded, self._reload_error()
        match await self._session.run(store.heartbeat(self._worker, state, *said)):
            case []:
                self._on_declared_dead()
            case [wanted]:
                self._obey(wanted)

    async def run_once(self) -> None:
        self._due.clear()
        await self.beat()
        await wait(self._due, self._every_s if self._measure_again else min(self._every_s, FIRST_S))
        if not self._due.is_set() and (asked := time.monotonic()) >= self._measure_again:
            self._memory_bytes = await asyncio.to_thread(memory.proportional_bytes_below, os.getpid())
            self._measure_again = time.monotonic() + MEASURE_SHARE * (time.monotonic() - asked)

    def _obey(self, wanted: store.Wanted) -> None:
        if wanted.drain and not self._draining:
            self._on_drain()
        if wanted.reload_requested_at not in (None, self.reload_requested_at):
            self.reload_requested_at = wanted.reload_requested_at
            self._on_reload()
        self._on_set(wanted.slots, wanted.queues)
