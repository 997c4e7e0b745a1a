"""The client's connections to the database: made when first needed, shared by threads, not by processes.

Idle connections wait in a list; whoever needs one takes it or makes one. After a fork the list is forgotten,
not closed: its sockets are the parent's. Async connections are kept apart for each event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

import psycopg

from outlive import db, embedded, migrate
from outlive.config import Config

T = TypeVar("T")
MAX_IDLE = 8
# What is safe to repeat is repeated over this time: a server that restarts is back well before.
PAUSES_S = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)

_log = logging.getLogger("outlive")


class Connections:
    """One app's way to its database; every statement it runs may be repeated without harm."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._idle: list[db.Connection] = []
        self._async_idle: WeakKeyDictionary[asyncio.AbstractEventLoop, list[db.AsyncConnection]] = WeakKeyDictionary()
        self._checked = False

    def run(self, statement: db.Statement[T]) -> T:
        return self.within(lambda connection: db.run(connection, statement))

    def within(self, work: Callable[[db.Connection], T]) -> T:
        """Do work that may be repeated; on a connection that breaks it is, on a new one."""
        with db.blamed():
            for pause_s in PAUSES_S:
                try:
                    with self._one() as connection:
                        return work(connection)
                except psycopg.Error as error:
                    if pause_s == PAUSES_S[-1] or not db.transient(error):
                        raise
                    _log.debug("repeating after %s", error)
                    time.sleep(pause_s)
        raise AssertionError("unreachable")

    async def arun(self, statement: db.Statement[T]) -> T:
        return await self.awithin(lambda connection: db.arun(connection, statement))

    async def awithin(self, work: Callable[[db.AsyncConnection], Awaitable[T]]) -> T:
        """The async twin of `within`."""
        with db.blamed():
            for pause_s in PAUSES_S:
                try:
                    async with self._aone() as connection:
                        return await work(connection)
                except psycopg.Error as error:
                    if pause_s == PAUSES_S[-1] or not db.transient(error):
                        raise
                    _log.debug("repeating after %s", error)
                    await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the idle connections of this process; the next use makes new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle if self._pid == os.getpid() else ():
            connection.close()

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        for connection in self._async_idle.pop(asyncio.get_running_loop(), []):
            await connection.close()

    @contextlib.contextmanager
    def _one(self) -> Iterator[db.Connection]:
        self._notice_fork()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or db.connect(self._ready_url())
        try:
            yield connection
        finally:
            with self._lock:
                keep = not connection.broken and not connection.closed and len(self._idle) < MAX_IDLE
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    @contextlib.asynccontextmanager
    async def _aone(self) -> AsyncIterator[db.AsyncConnection]:
        self._notice_fork()
        idle = self._async_idle.setdefault(asyncio.get_running_loop(), [])
        if idle:
            connection = idle.pop()
        else:
            connection = await db.aconnect(await asyncio.to_thread(self._ready_url))
        try:
            yield connection
        finally:
            if not connection.broken and not connection.closed and len(idle) < MAX_IDLE:
                idle.append(connection)
            else:
                await connection.close()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._forget()

    def _ready_url(self) -> str:
        """The database's address, once its schema is known to be right. The embedded server gets it by itself."""
        url = self._config().database_url
        address = url or embedded.fall_back()
        if not self._checked:
            with db.connect(address) as connection:
                if url is None:
                    migrate.migrate(connection)
                else:
                    migrate.check(connection)
            self._checked = True
        return address
