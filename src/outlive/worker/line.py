"""A line to the database: one connection, made anew when it broke, and one statement at a time.

Whoever holds a lock in a transaction that he has forgotten costs a statement some seconds, and not the line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from outlive import db, kernel

T = TypeVar("T")


class Line:
    def __init__(self, url: str) -> None:
        self.url = url
        self.session = 0
        """Counts the connections made: what was seen in one proves nothing in the next."""
        self._connection: db.AsyncConnection | None = None
        self._lock = asyncio.Lock()

    @property
    def pooled(self) -> bool:
        return self._connection is not None and db.pooled(self._connection)

    async def run(self, statement: db.Statement[T]) -> T:
        async with self._held() as connection:
            return await db.arun(connection, statement)

    async def run_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """All or none of them."""
        async with self._held() as connection:
            return await db.arun_all(connection, statements)

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[db.AsyncConnection]:
        async with self._lock:
            if self._connection is None or self._connection.closed or self._connection.broken:
                self._connection = await db.aconnect(self.url, hasty=True)
                self.session += 1
            yield self._connection

    def hang_up(self) -> None:
        """Whoever waits for an answer hears at once that none comes."""
        if self._connection is not None and not self._connection.closed:
            kernel.hang_up(self._connection.fileno())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
