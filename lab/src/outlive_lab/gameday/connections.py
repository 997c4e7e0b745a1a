"""How the jobs of a game reach its database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from select import select
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

from outlive import db

T = TypeVar("T")


CONNECT_S = 5
"""How long a job waits for each host of its address."""
ANSWER_S = 8.0
"""How long a job waits for an answer: the server may be frozen. No innocent job times out for that."""


class Connection(psycopg.Connection[tuple[object, ...]]):
    """Pauses before a completion. A worker that is frozen in this pause certainly writes too late."""

    pause_s = 0.0

    def wait(self, gen: PQGen[T], *words: Any, **more: Any) -> T:
        """Every statement goes through here, whichever cursor sends it."""
        pause_s, self.pause_s = self.pause_s, 0.0
        time.sleep(pause_s)
        return super().wait(db.bounded(gen, time.monotonic() + ANSWER_S), *words, **more)


class AsyncConnection(psycopg.AsyncConnection[tuple[object, ...]]):
    async def wait(self, gen: PQGen[T], *words: Any, **more: Any) -> T:
        return await super().wait(db.bounded(gen, time.monotonic() + ANSWER_S), *words, **more)


class Client:
    """A connection that all jobs of a process share. It is opened again after an error, and if its session has ended.

    That may be long ago, if the process was frozen meanwhile.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None

    async def run(self, statement: str, values: Sequence[object]) -> None:
        """In time, also if others wait before this one for a server that is frozen."""
        async with asyncio.timeout(ANSWER_S), self._lock:
            if self._connection is not None and _has_ended(self._connection):
                await self.close()
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


def _has_ended(connection: AsyncConnection) -> bool:
    """An idle session sends nothing before its end."""
    return bool(select([connection], [], [], 0)[0])


async def connect(url: str | None) -> AsyncConnection:
    assert url is not None, "the workers of a game get the address of its database"
    return await AsyncConnection.connect(
        url, autocommit=True, connect_timeout=CONNECT_S, application_name="gameday shared"
    )
