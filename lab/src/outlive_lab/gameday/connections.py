"""How the jobs of a game reach its database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")


class Connection(psycopg.Connection[tuple[object, ...]]):
    """Pauses before a completion. A worker that is frozen in this pause certainly writes too late."""

    pause_s = 0.0

    def wait(self, gen: PQGen[T], *words: Any, **more: Any) -> T:
        """Every statement goes through here, whichever cursor sends it."""
        pause_s, self.pause_s = self.pause_s, 0.0
        time.sleep(pause_s)
        return super().wait(gen, *words, **more)


class Client:
    """A connection that all jobs of a process share. It is opened again after an error."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None

    async def run(self, statement: str, values: Sequence[object]) -> None:
        async with self._lock:
            self._connection = self._connection or await connect(self._url)
            try:
                await self._connection.execute(statement.encode(), values)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


async def connect(url: str | None) -> psycopg.AsyncConnection[tuple[object, ...]]:
    assert url is not None, "the workers of a game get the address of its database"
    return await psycopg.AsyncConnection.connect(
        url, autocommit=True, connect_timeout=10, application_name="gameday shared"
    )
