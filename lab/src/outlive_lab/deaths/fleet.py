"""What virtual workers share: the sessions that run their statements, and how a session is cut."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from outlive import db, linux
from outlive_lab.deaths.history import History

T = TypeVar("T")
IDLE = TransactionStatus.IDLE
RETRY_S = 0.05
HANDS = 16
PATIENCE_S = 600.0
"""How long the server may be away."""
GONE = (psycopg.OperationalError, psycopg.InterfaceError)
BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
"""Nothing was written: try again."""
_DECLARED = "select id from outlive.workers where state = 'dead' and id = any(%s)"
_UNFINISHED = """
select (select count(*) from outlive.waiting) + (select count(*) from outlive.running)
  + (select count(*) from outlive.held where why <> 'quarantined'),
  exists (select from outlive.held where why = 'suspect' and ready_at <= outlive.now()),
  array(select id from outlive.workers where state in ('active', 'stale', 'draining'))
"""


class Fleet:
    """Each worker has a session of its own, which holds its lock and dies with it. The sessions that run statements are
    shared, because a new one plans all of them again, which takes longer than all else in a short life. A session that
    is cut in a statement serves no other worker."""

    def __init__(self, url: str) -> None:
        self.url, self.history = url, History()
        self.draining = False
        """No worker dies any more, unless its job kills it."""
        self.over = False
        self.unfinished = 0
        self.suspects = False
        """Suspects wait for an idle worker."""
        self._idle: list[db.AsyncConnection] = []
        self._places = asyncio.Semaphore(HANDS)
        self._own: db.AsyncConnection | None = None
        self._own_turn = asyncio.Lock()
        self._awaited: dict[UUID, asyncio.Event] = {}

    async def connect(self, purpose: db.Purpose | None = None) -> db.AsyncConnection:
        """A session, as soon as the server is there; without a purpose one that only holds a lock."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if purpose is not None:
                    return await db.aconnect(self.url, purpose)
                return await db.AsyncConnection.connect(self.url, autocommit=True, prepare_threshold=None)
            except GONE:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    @asynccontextmanager
    async def hand(self) -> AsyncIterator[db.AsyncConnection]:
        """A session for statements. One that is closed meanwhile is not used again."""
        async with self._places:
            one = self._idle.pop() if self._idle else await self.connect(db.CLAIMS)
            try:
                yield one
            except GONE as error:
                if db.lost(error):
                    await one.close()
                raise
            finally:
                if one.pgconn.transaction_status == IDLE:
                    self._idle.append(one)
                else:
                    await one.close()

    async def run(self, statement: db.Statement[T]) -> T:
        async with self.hand() as hand:
            return await db.arun(hand, statement)

    async def surely(self, statement: db.Statement[T]) -> T:
        """Run a statement that may be repeated until it has an answer."""
        while True:
            try:
                return await self.run(statement)
            except GONE as error:
                if not db.lost(error) and not isinstance(error, BUSY):
                    raise
                await asyncio.sleep(RETRY_S)

    async def ask(self, text: str, *values: object) -> list[Any]:
        """Run a statement that is not outlive's, until it has an answer."""
        async with self._own_turn:
            while True:
                if self._own is None or self._own.closed:
                    self._own = await self.connect(db.PLAIN)
                try:
                    return await (await self._own.execute(text.encode(), values)).fetchall()
                except GONE:
                    await self._own.close()

    async def terminate(self, one: db.AsyncConnection) -> None:
        """End a session in the server."""
        await self.ask("select pg_terminate_backend(%s)", one.info.backend_pid)

    async def declared_dead(self, worker: UUID) -> None:
        """Wait until others have declared this worker dead."""
        await self._awaited.setdefault(worker, asyncio.Event()).wait()

    async def look(self) -> None:
        """See who was declared dead, how many jobs are unfinished, and whether all is over."""
        if self._awaited:
            for (worker,) in await self.ask(_DECLARED, list(self._awaited)):
                self._awaited.pop(worker).set()
        [(self.unfinished, self.suspects, up)] = await self.ask(_UNFINISHED)
        dead = any(self.history.lives[one].died_s is not None for one in up if one in self.history.lives)
        self.over = self.draining and not self.unfinished and not dead and not self._awaited

    async def close(self) -> None:
        for one in [*self._idle, *filter(None, [self._own])]:
            await one.close()


def post(connection: db.AsyncConnection, statement: db.Statement[Any] | bytes) -> None:
    """Send a statement, and don't wait for its answer."""
    with contextlib.suppress(*GONE):
        if isinstance(statement, bytes):
            connection.pgconn.send_query(statement)
        else:
            connection.send(statement)
        connection.pgconn.flush()  # It is short enough for the socket.


async def hang_up(connection: db.AsyncConnection) -> None:
    """Cut a session as the death of its process does: without a goodbye."""
    if not connection.closed:
        linux.hang_up(connection.fileno())
        await connection.close()
