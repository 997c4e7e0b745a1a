"""The dashboard's connections: a few that read for the pages, and one for what operators do.

While the database is away, a page fails at once and shows since when. One request in a second tries to connect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TypeVar

import psycopg

from outlive import db
from outlive.errors import DatabaseBusy, DatabaseUnreachable
from outlive.operations import Steps, arun

T = TypeVar("T")
SIZE = 4
CONNECT_S = 3.0
TRY_AGAIN_S = 1.0
WAIT_S = 5.0


class Away(DatabaseUnreachable):
    """The database can't be reached, since this moment."""

    def __init__(self, why: str, since: datetime) -> None:
        super().__init__(why)
        self.since = since


class Database:
    """Runs statements on at most `size` connections. Those of db.PAGES can only read."""

    def __init__(self, address: Callable[[], str], *, size: int = SIZE, purpose: db.Purpose = db.PAGES) -> None:
        self._address, self._purpose = address, purpose
        self._free = asyncio.Semaphore(size)
        self._idle: list[db.AsyncConnection] = []
        self._url: str | None = None
        self._connecting = asyncio.Lock()
        self._away: Away | None = None
        self._tried_at = -TRY_AGAIN_S

    def name(self) -> str:
        """The database as people know it; empty until it has answered."""
        return "" if self._url is None else db.named(self._url)

    async def run(self, statement: db.Statement[T], *, again: bool = True) -> T:
        return await self.within(lambda connection: db.arun(connection, statement), again=again)

    async def do(self, steps: Steps[T]) -> T:
        """Do an operation of several statements. The audit counts what is done to jobs, so that is not done again."""
        return await arun(steps, lambda one: self.run(one, again=one.name != "act"))

    async def do_at_once(self, steps: Steps[T]) -> T:
        """Do an operation in one transaction, and never again."""

        async def work(connection: db.AsyncConnection) -> T:
            async with connection.transaction():
                return await arun(steps, lambda one: db.arun(connection, one))

        return await self.within(work, again=False)

    async def within(self, work: Callable[[db.AsyncConnection], Awaitable[T]], *, again: bool = True) -> T:
        """Do work. Unless it may not be done twice, it is done `again` if an idle connection turns out to be broken."""
        with db.translated_errors():
            try:
                async with self._one() as connection:
                    return await work(connection)
            except psycopg.Error as error:
                if not again or not db.transient(error):
                    raise
            async with self._one(new=True) as connection:
                return await work(connection)

    @asynccontextmanager
    async def _one(self, *, new: bool = False) -> AsyncIterator[db.AsyncConnection]:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise DatabaseBusy("the dashboard has no free connection: its other pages are slow, too") from None
        connection: db.AsyncConnection | None = None
        fit = False
        try:
            if new:
                await self._close_idle()
            connection = self._idle.pop() if self._idle else await self._connect()
            yield connection
            fit = True
        except psycopg.Error:
            fit = connection is not None and not connection.broken
            raise
        finally:
            self._free.release()
            if connection is not None:
                if fit and not connection.closed:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _connect(self) -> db.AsyncConnection:
        async with self._connecting:
            if self._away is not None and time.monotonic() - self._tried_at < TRY_AGAIN_S:
                raise self._away
            try:
                if self._url is None:
                    self._url = await asyncio.to_thread(self._address)
                async with asyncio.timeout(CONNECT_S):
                    connection = await db.aconnect(self._url, self._purpose)
            except (psycopg.Error, TimeoutError, OSError) as error:
                self._tried_at = time.monotonic()
                since = datetime.now(UTC) if self._away is None else self._away.since
                why = str(error).strip() or f"no answer within {CONNECT_S:g} s"
                self._away = Away(why.splitlines()[0], since)
                raise self._away from None
            self._away = None
            return connection

    async def close(self) -> None:
        """Close the idle connections. The next one asks for the address again: each test has a database of its own."""
        await self._close_idle()
        self._url = self._away = None

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()
