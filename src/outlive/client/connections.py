"""The client's connections to the database: opened when needed, shared by threads, not by processes.

Idle connections are kept in a list. A caller takes one from it, or opens one. A forked process forgets the list and
does not close it: the sockets are its parent's. Each event loop has its own async connections, and no more of them than
it keeps: its tasks may be thousands, and the server has room for about a hundred sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq

from outlive import db, migrate
from outlive.client.waiting import Waiting
from outlive.config import Config

T = TypeVar("T")
MAX_IDLE = 8
# How long a task waits for a connection of its event loop. Then it opens one more: those that are in use may wait for a
# lock that the task itself holds, in a transaction of its own.
ROOM_S = 5.0
# How long work is retried after its first failure. A server restart takes less.
PATIENCE_S = 5.0
# Errors that a retry won't cure. A failed connection has no SQLSTATE, only its text. If a server says this in another
# language, the client retries until its patience ends.
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "not permitted to log in")

_IDLE = pq.TransactionStatus.IDLE

_log = logging.getLogger("outlive")


class Connections:
    """The connections of one app. Every statement that runs here can be repeated without harm."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[db.Connection] = []
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()
        self._waiting = Waiting(self.within)
        self._checked: Config | None = None  # The configuration whose database is known to have the right schema.
        self._pid = os.getpid()  # Last: a thread that reads it as its own must not find the parent's connections.

    @property
    def waiting(self) -> Waiting:
        """The jobs that this process waits for."""
        self._notice_fork()
        return self._waiting

    def run_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """Run all statements in one transaction."""
        return self.within(lambda connection: db.run_all(connection, statements))

    def within(self, work: Callable[[db.Connection], T]) -> T:
        """Do work that can be repeated. If its connection breaks, it is repeated on a new one."""
        retries = None
        while True:
            try:
                return self._once(work)
            except psycopg.Error as error:
                retries = retries or _Retries()
                pause_s = retries.pause_s(error)
                self.close()  # An outage that broke one connection has probably broken them all.
                time.sleep(pause_s)

    async def arun_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """The async twin of `run_all`."""
        return await self.awithin(lambda connection: db.arun_all(connection, statements))

    async def awithin(self, work: Callable[[db.AsyncConnection], Awaitable[T]]) -> T:
        """The async twin of `within`."""
        retries = None
        while True:
            try:
                return await self._aonce(work)
            except psycopg.Error as error:
                retries = retries or _Retries()
                pause_s = retries.pause_s(error)
                await self.aclose()
                await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Close the idle connections of this process; the next use opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle if self._pid == os.getpid() else ():
            connection.close()

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        idle = self._of_this_loop().idle
        while idle:
            await idle.pop().close()

    def _once(self, work: Callable[[db.Connection], T]) -> T:
        """Do work on a connection, which is kept afterwards if it is fit to be used again."""
        self._notice_fork()
        with self._lock:
            all_idle = self._idle
            idle = all_idle.pop() if all_idle else None
        connection = idle or db.connect(self._ready_url())
        try:
            return work(connection)
        except psycopg.Error as error:
            _close_if_unfit(connection, error)
            raise
        finally:
            with self._lock:
                # `close` may have come meanwhile, because another database is used from now on.
                kept = all_idle is self._idle and _is_idle(connection) and len(all_idle) < MAX_IDLE
                if kept:
                    all_idle.append(connection)
            if not kept:
                connection.close()

    async def _aonce(self, work: Callable[[db.AsyncConnection], Awaitable[T]]) -> T:
        """The async twin of `_once`."""
        self._notice_fork()
        mine = self._of_this_loop()
        entered = await mine.enter()
        try:
            return await self._aon_one(mine.idle, work)
        finally:
            if entered:
                mine.places.release()

    def _of_this_loop(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        return self._of_loops.get(loop) or self._of_loops.setdefault(loop, _OfLoop())

    async def _aon_one(self, idle: list[db.AsyncConnection], work: Callable[[db.AsyncConnection], Awaitable[T]]) -> T:
        connection = idle.pop() if idle else await db.aconnect(await asyncio.to_thread(self._ready_url))
        try:
            return await work(connection)
        except psycopg.Error as error:
            _close_if_unfit(connection, error)
            raise
        finally:
            if _is_idle(connection) and len(idle) < MAX_IDLE:
                idle.append(connection)
            else:
                await connection.close()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._forget()

    def _ready_url(self) -> str:
        """The address of the database, whose schema is checked once."""
        config = self._config()
        if self._checked is config:
            return migrate.address(config)
        address = migrate.ready(config)
        self._checked = config
        return address


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.idle: list[db.AsyncConnection] = []
        self.places = asyncio.Semaphore(MAX_IDLE)

    async def enter(self) -> bool:
        """Wait for a place among those that use a connection. False: it took too long, and no place was taken."""
        if not self.places.locked():
            return await self.places.acquire()  # At once, and without a timer, which costs more than the rest.
        with suppress(TimeoutError):
            async with asyncio.timeout(ROOM_S):
                return await self.places.acquire()
        return False


class _Retries:
    """When to repeat work that failed: at once, then after growing pauses, for PATIENCE_S from the first failure on."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._pause_s = 0.0

    def pause_s(self, error: psycopg.Error) -> float:
        """How long to wait before the next try. Raises the error, translated, if a retry can't help or is too late."""
        self._deadline = self._deadline or time.monotonic() + PATIENCE_S
        left_s = self._deadline - time.monotonic()
        refused = error.sqlstate is None and any(words in str(error) for words in _REFUSED)
        if left_s <= 0 or refused or not db.transient(error):
            with db.translated_errors():
                raise error
        _log.debug("retrying after %s", error)
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2 + 0.05, 1.0)
        return min(pause_s, left_s)


def _close_if_unfit(connection: db.Connection | db.AsyncConnection, error: psycopg.Error) -> None:
    """Close a connection whose session may be the cause of an error."""
    if db.may_be_the_session(error):
        connection.pgconn.finish()


def _is_idle(connection: db.Connection | db.AsyncConnection) -> bool:
    """Whether it can be used again: it is open, and in no transaction."""
    return connection.pgconn.transaction_status == _IDLE
