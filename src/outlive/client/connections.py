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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq

from outlive import db, migrate
from outlive.config import Config

T = TypeVar("T")
MAX_IDLE = 8
# How long work is repeated after its first failure: a server that restarts is back well before.
PATIENCE_S = 5.0
# A failed connection has no SQLSTATE. A server that says this in another language costs the client its patience.
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "not permitted to log in")

_log = logging.getLogger("outlive")


class Connections:
    """One app's way to its database; every statement it runs may be repeated without harm."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._idle: list[db.Connection] = []
        self._async_idle: WeakKeyDictionary[asyncio.AbstractEventLoop, list[db.AsyncConnection]] = WeakKeyDictionary()
        self._checked = False
        self._pid = os.getpid()  # Last: a thread that reads it as its own must not find the parent's connections.

    def run_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """All or none of them."""
        return self.within(lambda connection: db.run_all(connection, statements))

    def within(self, work: Callable[[db.Connection], T]) -> T:
        """Do work that may be repeated; on a connection that breaks it is, on a new one."""
        with db.translated_errors():
            pauses = _pauses()
            while True:
                try:
                    connection = self._take()
                    try:
                        return work(connection)
                    except psycopg.Error as error:
                        if db.may_be_the_session(error):
                            connection.close()
                        raise
                    finally:
                        self._give_back(connection)
                except psycopg.Error as error:
                    pause_s = next(pauses, None)
                    if pause_s is None or not _may_pass(error):
                        raise
                    _log.debug("repeating after %s", error)
                    self.close()  # What broke one has probably broken them all.
                    time.sleep(pause_s)

    async def arun_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """The async twin of `run_all`."""
        return await self.awithin(lambda connection: db.arun_all(connection, statements))

    async def awithin(self, work: Callable[[db.AsyncConnection], Awaitable[T]]) -> T:
        """The async twin of `within`."""
        with db.translated_errors():
            pauses = _pauses()
            while True:
                try:
                    async with self._aone() as connection:
                        try:
                            return await work(connection)
                        except psycopg.Error as error:
                            if db.may_be_the_session(error):
                                await connection.close()
                            raise
                except psycopg.Error as error:
                    pause_s = next(pauses, None)
                    if pause_s is None or not _may_pass(error):
                        raise
                    _log.debug("repeating after %s", error)
                    await self.aclose()
                    await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Close the idle connections of this process; the next use makes new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle if self._pid == os.getpid() else ():
            connection.close()

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        idle = self._async_idle.get(asyncio.get_running_loop(), [])
        while idle:
            await idle.pop().close()

    def _take(self) -> db.Connection:
        self._notice_fork()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        return connection or db.connect(self._ready_url())

    def _give_back(self, connection: db.Connection) -> None:
        with self._lock:
            keep = _is_idle(connection) and len(self._idle) < MAX_IDLE
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
            if _is_idle(connection) and len(idle) < MAX_IDLE:
                idle.append(connection)
            else:
                await connection.close()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._forget()

    def _ready_url(self) -> str:
        """The database's address, once its schema is known to be right."""
        config = self._config()
        if self._checked:
            return migrate.address(config)
        address = migrate.ready(config)
        self._checked = True
        return address


def _may_pass(error: psycopg.Error) -> bool:
    """Whether it may work in a moment. A server that refuses a user or knows no such database will go on doing so."""
    return db.transient(error) and not (error.sqlstate is None and any(words in str(error) for words in _REFUSED))


def _pauses() -> Iterator[float]:
    """How long to wait before each repetition: first not at all, then ever longer, until patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    pause_s = 0.0
    while (left_s := deadline - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(pause_s * 2 + 0.05, 1.0)


def _is_idle(connection: db.Connection | db.AsyncConnection) -> bool:
    """Fit to be used again: open, and in no transaction."""
    return not connection.closed and connection.info.transaction_status is pq.TransactionStatus.IDLE
