"""What virtual workers share: the sessions that run their statements, and how a session is cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
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
CUT = 0.1
"""How many of the sessions that are cut in a statement end with it."""
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
    """Each worker has a session of its own, which holds its lock. It dies with the worker, or a pooler gives it to the
    next one. The sessions that run statements are shared, because a new one plans all of them again, which takes longer
    than all else in a short life."""

    def __init__(self, url: str) -> None:
        self.url, self.history = url, History()
        self.draining = False
        """No worker dies any more, unless its job kills it."""
        self.over = False
        self.unfinished = 0
        self.suspects = False
        """Suspects wait for an idle worker."""
        self.calm = False
        """No job is unfinished, and no death unnoticed."""
        self._idle: list[db.AsyncConnection] = []
        self._pooled: list[db.AsyncConnection] = []
        self._places = asyncio.Semaphore(HANDS)
        self._own: db.AsyncConnection | None = None
        self._own_turn = asyncio.Lock()
        self._awaited: dict[UUID, asyncio.Event] = {}

    async def connect(self, purpose: db.Purpose | None = None) -> db.AsyncConnection:
        """A session, as soon as the server is there; without a purpose one that only holds a lock, perhaps from the
        pooler."""
        if purpose is None and self._pooled:
            return self._pooled.pop()
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

    async def pool(self, one: db.AsyncConnection) -> None:
        """What PgBouncer does in session mode with the session of a client that is gone."""
        try:
            await one.execute("discard all")
            one.prepared.clear()
            self._pooled.append(one)
        except GONE:
            await one.close()

    @asynccontextmanager
    async def hand(self, *, kept: bool = False) -> AsyncIterator[db.AsyncConnection]:
        """A session for statements. One that is closed meanwhile is not used again, and one that is kept for long takes
        no place of others."""
        async with contextlib.nullcontext() if kept else self._places:
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

    async def cut(self, hand: db.AsyncConnection) -> None:
        """Leave the answer unread. Postgres notices that a client is gone only after its statement, so a session
        that reads and forgets does the same to the tables as one that ends."""
        if random.random() < CUT:
            await hang_up(hand)
        else:
            with contextlib.suppress(psycopg.Error):
                await hand.finish()

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
        """See who was declared dead, how many jobs are unfinished, and whether all is calm."""
        if self._awaited:
            for (worker,) in await self.ask(_DECLARED, list(self._awaited)):
                self._awaited.pop(worker).set()
        [(self.unfinished, self.suspects, up)] = await self.ask(_UNFINISHED)
        unnoticed = any(self.history.lives[one].died_s is not None for one in up if one in self.history.lives)
        self.calm = not self.unfinished and not unnoticed and not self._awaited

    async def close(self) -> None:
        for one in [*self._idle, *self._pooled, *filter(None, [self._own])]:
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
