"""How a worker shows that it lives: by a connection that holds a lock and listens, and by a heartbeat.

The server releases the lock within milliseconds when this process dies, whatever killed it. A worker that loses the
connection without dying makes a new one at once. The heartbeat shows the same where no lock can, and how the worker
fares; its answer is what operators want of the worker.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import psycopg

from outlive import db, embedded, store
from outlive.worker import log
from outlive.worker.limits import memory
from outlive.worker.loops import wait
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

BEHIND_A_POOLER = (
    "the database is behind a pooler in transaction mode: other workers notice the death of this one only when its "
    "heartbeat is missed (after two minutes) or its leases expire (after five), and it finds new jobs by polling every "
    "second; give workers an address that bypasses the pooler, with session_url (OUTLIVE_SESSION_URL)"
)

FIRST_S = 5.0
"""When the second heartbeat comes at the latest: at the first one, the memory of the app is not measured yet."""
MEASURE_SHARE = 200
"""Measuring the memory of all processes may take this part of the time: the kernel walks through all their pages."""
Then = Callable[[], None]


class Liveness:
    """The session that holds the lock and listens. Services run their short statements on it: one that finds the
    connection broken makes the next one, and with it takes the lock again."""

    def __init__(self, worker: UUID, url: str, notify: Callable[[str], None]) -> None:
        self._worker, self._notify = worker, notify
        self.session = Session(url, db.LIVENESS, on_open=self._show, on_idle=self._listen)
        self._lost = asyncio.Event()
        self._listens_on: int | None = None
        self._warned = False

    async def show(self) -> None:
        """Connect and take the lock, before the first claim."""
        await asyncio.to_thread(embedded.repair, self.session.url)  # An embedded server has no other guard.
        await self.session.open()

    async def run_once(self) -> None:
        """Hold the lock as long as the connection lasts. Without another one, others declare this worker dead half a
        second later."""
        self._lost.clear()
        await self.show()
        await self._lost.wait()

    async def _show(self, connection: db.AsyncConnection) -> None:
        connection.add_notify_handler(lambda one: self._notify(one.payload))
        if connection.pooled:
            if not self._warned:
                log.warning(BEHIND_A_POOLER)
            self._warned = True
            return
        while not await db.arun(connection, store.hold_liveness_lock(self._worker, secrets.randbits(63))):
            pass
        await connection.execute(f"listen outlive; listen outlive_{str(self._worker)[:8]}".encode())
        self._notify("")  # For what was enqueued before this connection listened.

    def _listen(self, connection: db.AsyncConnection) -> None:
        """Wait for notifications until the next statement. The driver would wake this process ten times a second."""
        if connection.closed:
            self._lost.set()
            return
        self._listens_on = connection.fileno()
        asyncio.get_running_loop().add_reader(self._listens_on, self._read, connection)
        _pass_on(connection)  # Those that came with the answer to the last statement.

    def _read(self, connection: db.AsyncConnection) -> None:
        try:
            connection.pgconn.consume_input()
            _pass_on(connection)
        except psycopg.OperationalError as error:
            self.session.note_loss(error)
        if connection.closed:
            self._stop_listening()
            self._lost.set()

    def _stop_listening(self) -> None:
        if self._listens_on is not None:
            asyncio.get_running_loop().remove_reader(self._listens_on)
            self._listens_on = None

    async def close(self) -> None:
        self.session.hang_up()
        self._stop_listening()
        await self.session.close()


def _pass_on(connection: db.AsyncConnection) -> None:
    while (one := connection.pgconn.notifies()) and (handle := connection.pgconn.notify_handler):
        handle(one)


class Heartbeat:
    def __init__(
        self,
        worker: UUID,
        session: Session,
        every_s: float,
        slots: Slots,
        *,
        on_declared_dead: Then,
        on_drain: Then,
        on_reload: Then,
        on_set: Callable[[int, tuple[str, ...] | None], None],
    ) -> None:
        self._worker, self._session, self._every_s, self._slots = worker, session, every_s, slots
        self._on_declared_dead, self._on_drain = on_declared_dead, on_drain
        self._on_reload, self._on_set = on_reload, on_set
        self.reload_requested_at: datetime | None = None
        """When an operator last asked for a reload."""
        self._reloaded: datetime | None = None
        self._due = asyncio.Event()
        self.hurry = self._due.set  # The next heartbeat is sent at once: a SIGKILL may follow a SIGTERM.
        self._memory_bytes: int | None = None
        self._measure_again = 0.0

    def answer_reload(self, requested_at: datetime | None) -> None:
        """The app was imported again, or could not be, after this request of an operator, or a signal."""
        self._reloaded = requested_at
        self._due.set()

    async def beat(self) -> None:
        slots = self._slots
        state = "draining" if slots.closed else "active"
        report = slots.trouble, self._memory_bytes, self._reloaded, slots.zygotes.reload_error
        if not (answer := await self._session.run(store.heartbeat(self._worker, state, *report))):
            self._on_declared_dead()
            return
        (wanted,) = answer
        if wanted.drain and not slots.closed:
            self._on_drain()
        if wanted.reload_requested_at not in (None, self.reload_requested_at):
            self.reload_requested_at = wanted.reload_requested_at
            self._on_reload()
        self._on_set(wanted.slots, wanted.queues)

    async def run_once(self) -> None:
        self._due.clear()
        await self.beat()
        await wait(self._due, self._every_s if self._measure_again else min(self._every_s, FIRST_S))
        if not self._due.is_set() and (asked := time.monotonic()) >= self._measure_again:
            self._memory_bytes = await asyncio.to_thread(memory.proportional_bytes_below, os.getpid())
            self._measure_again = time.monotonic() + MEASURE_SHARE * (time.monotonic() - asked)
