"""A line to the database: one connection, replaced when it breaks or keeps failing, and one statement at a time.

A lock that another transaction holds costs a statement some seconds, and not the line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg

from outlive import db, kernel

T = TypeVar("T")

REPLACE_AFTER = 3
"""After so many equal failures in a row a connection is replaced: what its session keeps may be to blame."""

_log = logging.getLogger("outlive.worker")


class Failures:
    """How often in a row the same thing has failed in the same way."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str | None, int]] = {}

    def passed(self, what: str) -> None:
        self._seen.pop(what, None)

    def repeated(self, what: str, error: psycopg.Error) -> bool:
        """Count a failure. True: a new connection is worth a try. This stays so until it has passed once."""
        if not db.may_be_the_session(error):
            return False
        before, times = self._seen.get(what, (None, 0))
        times = times + 1 if before == error.sqlstate else 1
        self._seen[what] = (error.sqlstate, times)
        if times == REPLACE_AFTER:
            _log.warning("%s has failed %d times: its connection is replaced (%s)", what, times, error.sqlstate)
        return times >= REPLACE_AFTER


class Line:
    def __init__(self, url: str, *, lock_s: float = db.LOCK_S, statement_s: float = db.STATEMENT_S) -> None:
        self.url, self.lock_s, self.statement_s = url, lock_s, statement_s
        self.session = 0
        """Counts the connections made: what was seen in one proves nothing in the next."""
        self._connection: db.AsyncConnection | None = None
        self._lock = asyncio.Lock()
        self._failures = Failures()

    @property
    def pooled(self) -> bool:
        return self._connection is not None and db.pooled(self._connection)

    async def run(self, statement: db.Statement[T]) -> T:
        async with self._held(statement.name) as connection:
            return await db.arun(connection, statement)

    async def run_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """All or none of them."""
        async with self._held("+".join(sorted({one.name for one in statements}))) as connection:
            return await db.arun_all(connection, statements)

    @asynccontextmanager
    async def _held(self, what: str) -> AsyncIterator[db.AsyncConnection]:
        """The connection, for one use of it. What reads may succeed where what writes fails: each counts by itself."""
        async with self._lock:
            if self._connection is None or self._connection.closed or self._connection.broken:
                self._connection = await db.aconnect(self.url, lock_s=self.lock_s, statement_s=self.statement_s)
                self.session += 1
            try:
                yield self._connection
            except psycopg.Error as error:
                if self._failures.repeated(what, error):
                    await self._connection.close()
                raise
            self._failures.passed(what)

    def hang_up(self) -> None:
        """What waits for an answer hears at once that none comes."""
        if self._connection is not None and not self._connection.closed:
            kernel.hang_up(self._connection.fileno())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Lines:
    """A few lines, each connected when it is first needed; the one used last comes first."""

    def __init__(
        self, url: str, number: int, *, lock_s: float = db.LOCK_S, statement_s: float = db.STATEMENT_S
    ) -> None:
        self.lines = [Line(url, lock_s=lock_s, statement_s=statement_s) for _ in range(number)]
        self._idle = list(self.lines)
        self._free = asyncio.Semaphore(number)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Line]:
        async with self._free:
            line = self._idle.pop()
            try:
                yield line
            finally:
                self._idle.append(line)

    def hang_up(self) -> None:
        for line in self.lines:
            line.hang_up()

    async def close(self) -> None:
        for line in self.lines:
            await line.close()
