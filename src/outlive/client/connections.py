"""The client's connections to the database: opened when needed, shared by threads, not by processes.

A forked process forgets those of its parent and does not close them: the sockets are the parent's. Each event loop has
its own, and never more than PLACES: its tasks may be thousands, and the server has room for about a hundred sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psycopg
from psycopg import pq

from outlive import db, linux, migrate
from outlive.client.waiting import Waiting
from outlive.config import Config
from outlive.errors import DatabaseUnreachable

T = TypeVar("T")
MAX_IDLE = 8
PLACES = 8
# How long a task waits for a connection of its event loop while the server answers none of those that have one.
SILENT_S = 30.0
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
        self._of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = weakref.WeakKeyDictionary()
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
        return self.within(partial(db.run_all, statements=statements))  # A lambda is one more call for each enqueue.

    def within(self, work: Callable[[db.Connection], T], *, until: float | None = None) -> T:
        """Do work that can be repeated. If its connection breaks, it is repeated on a new one.

        `until` (monotonic) is for work that only reads: TimeoutError if it is not done by then, whatever it waits for.
        """
        retries = None
        while True:
            try:
                return self._once(work, until)
            except psycopg.Error as error:
                retries = retries or _Retries(until)
                pause_s = retries.pause_s(error)
                self.close()  # An outage that broke one connection has probably broken them all.
                time.sleep(pause_s)

    async def arun_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """The async twin of `run_all`."""
        return await self.awithin(lambda connection: db.arun_all(connection, statements))

    async def awithin(self, work: Callable[[db.AsyncConnection], Awaitable[T]], *, until: float | None = None) -> T:
        """The async twin of `within`."""
        retries = None
        while True:
            try:
                return await self._aonce(work, until)
            except psycopg.Error as error:
                retries = retries or _Retries(until)
                pause_s = retries.pause_s(error)
                await self.aclose()
                await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Close the idle connections of this process, and those of event loops that have ended; the next use opens new
        ones."""
        self._notice_fork()  # First: a thread of the parent may have held the lock.
        with self._lock:
            idle, self._idle = self._idle, []
            self._finish_ended_loops()
        for connection in idle:
            connection.close()

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        for connection in self._of_this_loop().forget():
            await connection.close()

    def _once(self, work: Callable[[db.Connection], T], until: float | None) -> T:
        """Do work on a connection, which is kept afterwards if it is fit to be used again."""
        self._notice_fork()
        with self._lock:
            all_idle = self._idle
            idle = all_idle.pop() if all_idle else None
        connection = idle or self._open(until)
        connection.until = until
        try:
            return work(connection)
        except psycopg.Error as error:
            _close_if_unfit(connection, error)
            raise
        finally:
            connection.until = None
            with self._lock:
                # `close` may have come meanwhile, because another database is used from now on.
                kept = all_idle is self._idle and _is_idle(connection) and len(all_idle) < MAX_IDLE
                if kept:
                    all_idle.append(connection)
            if not kept:
                connection.close()

    def _open(self, until: float | None) -> db.Connection:
        """A new connection. It is made in a thread if there is a deadline, because the server may be silent."""
        if until is None:
            return db.connect(self._ready_url())
        opened: Future[db.Connection] = Future()

        def connect() -> None:
            try:
                opened.set_result(self._open(None))
            except BaseException as error:
                opened.set_exception(error)

        threading.Thread(target=connect, name="outlive-connecting", daemon=True).start()
        try:
            return opened.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            opened.add_done_callback(_close_late)
            raise

    async def _aonce(self, work: Callable[[db.AsyncConnection], Awaitable[T]], until: float | None) -> T:
        """The async twin of `_once`."""
        mine = self._of_this_loop()
        while True:
            place = await mine.enter(until)
            try:
                answer = await self._aon(place, work, until)
                mine.answered()
                return answer
            except psycopg.Error as error:
                mine.answered(error)
                if not place.hasty or not isinstance(error, psycopg.errors.LockNotAvailable):
                    raise
            finally:
                mine.leave(place)

    def _of_this_loop(self) -> _OfLoop:
        self._notice_fork()
        loop = asyncio.get_running_loop()
        if (known := self._of_loops.get(loop)) is not None:
            return known
        with self._lock:
            self._finish_ended_loops()
            mine = self._of_loops.setdefault(loop, _OfLoop())
        weakref.finalize(loop, _finish, mine, os.getpid()).atexit = False
        return mine

    def _finish_ended_loops(self) -> None:
        """Tasks that have waited for a place keep their closed loop from being freed."""
        for closed in [one for one in self._of_loops if one.is_closed()]:
            _finish(self._of_loops.pop(closed), self._pid)

    async def _aon(self, place: _Place, work: Callable[[db.AsyncConnection], Awaitable[T]], until: float | None) -> T:
        connection, place.connection = place.connection, None
        if connection is None:
            async with asyncio.timeout(until and until - time.monotonic()):
                url = await asyncio.to_thread(self._ready_url)
                connection = await db.aconnect(url, db.HASTY if place.hasty else db.PLAIN)
        try:
            if until is None:
                return await work(connection)
            with _cut_off(connection, until):
                return await work(connection)
        except psycopg.Error as error:
            _close_if_unfit(connection, error)
            raise
        finally:
            if _is_idle(connection):
                place.connection = connection
            else:
                await connection.close()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._forget()

    def _ready_url(self) -> str:
        """The address of the database, whose schema is checked once."""
        config = self._config()
        address = migrate.address(config) if self._checked is config else migrate.ready(config)
        self._checked = config
        return address


@dataclass(slots=True, eq=False)
class _Place:
    """A place for one connection of an event loop, which it has while that is idle. In a `hasty` one no statement waits
    for a lock for long: it is repeated in another turn."""

    hasty: bool
    connection: db.AsyncConnection | None = None


class _OfLoop:
    """The connections of one event loop.

    The last free place is hasty. Otherwise a task that holds a lock, in a transaction of its own, could wait for ever
    behind tasks that wait for this lock.
    """

    def __init__(self) -> None:
        self._free = [_Place(hasty=True), *(_Place(hasty=False) for _ in range(PLACES - 1))]
        self._turns = asyncio.Semaphore(PLACES)
        self._answered_at = time.monotonic()

    async def enter(self, until: float | None) -> _Place:
        """Wait for a place. The one that was used last is used first."""
        if self._turns.locked():
            await self._turn(until)
        else:
            await self._turns.acquire()  # At once, and without a timer, which costs more than the rest.
        return self._free.pop()

    async def _turn(self, until: float | None) -> None:
        began = time.monotonic()
        while (left_s := max(began, self._answered_at) + SILENT_S - time.monotonic()) > 0:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError
            try:
                async with asyncio.timeout(left_s if until is None else min(left_s, until - time.monotonic())):
                    await self._turns.acquire()
                    return
            except TimeoutError:
                continue
        raise DatabaseUnreachable(
            f"the database can't be reached: for {SILENT_S:g} s it has answered none of the {PLACES} connections"
            " of this event loop"
        )

    def leave(self, place: _Place) -> None:
        self._free.insert(0 if place.hasty else len(self._free), place)
        self._turns.release()

    def answered(self, error: psycopg.Error | None = None) -> None:
        """The server has answered, unless this error shows that it is silent."""
        if error is None or error.sqlstate is not None:
            self._answered_at = time.monotonic()

    def forget(self) -> list[db.AsyncConnection]:
        """Give up the idle connections. They are still open."""
        idle = [place.connection for place in self._free if place.connection is not None]
        for place in self._free:
            place.connection = None
        return idle


def _finish(ended: _OfLoop, pid: int) -> None:
    """End the sessions of a loop that has ended. They could last until the garbage is collected, and a test's database
    that has any is not dropped. Those of the parent of this process stay."""
    if pid == os.getpid():
        for connection in ended.forget():
            connection.pgconn.finish()


class _Retries:
    """When to repeat work that failed: at once, then after growing pauses, for PATIENCE_S from the first failure on."""

    def __init__(self, until: float | None) -> None:
        self._until, self._deadline, self._pause_s = until, time.monotonic() + PATIENCE_S, 0.0

    def pause_s(self, error: psycopg.Error) -> float:
        """How long to wait before the next try. Raises the error, translated, if a retry can't help or is too late."""
        now = time.monotonic()
        refused = error.sqlstate is None and any(words in str(error) for words in _REFUSED)
        hopeless = refused or not db.transient(error)
        if self._until is not None and self._until <= now and not hopeless:
            raise TimeoutError from error
        left_s = min(self._deadline, self._until or self._deadline) - now
        if left_s <= 0 or hopeless:
            with db.translated_errors():
                raise error
        _log.debug("retrying after %s", error)
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2 + 0.05, 1.0)
        return min(pause_s, left_s)


def _close_late(opened: Future[db.Connection]) -> None:
    if opened.exception() is None:
        opened.result().close()


@contextmanager
def _cut_off(connection: db.AsyncConnection, until: float) -> Iterator[None]:
    """Cut the connection when the time is up, under a statement that gets no answer. To cancel it could take longer.

    The server notices it soon, also if the statement waits for a lock (db.PLAIN)."""
    cut = asyncio.get_running_loop().call_later(max(0.0, until - time.monotonic()), linux.hang_up, connection.fileno())
    try:
        yield
    finally:
        cut.cancel()


def _close_if_unfit(connection: db.Connection | db.AsyncConnection, error: psycopg.Error) -> None:
    """Close a connection whose session may be the cause of an error."""
    if db.may_be_the_session(error):
        connection.pgconn.finish()


def _is_idle(connection: db.Connection | db.AsyncConnection) -> bool:
    """Whether it can be used again: it is open, and in no transaction."""
    return connection.pgconn.transaction_status == _IDLE
