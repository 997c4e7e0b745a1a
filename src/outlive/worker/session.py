"""A session with the database: one connection, replaced when it breaks or keeps failing, one statement at a time.

A lock that another transaction holds costs a statement some seconds, and the session stays usable. What takes long, or
is seldom needed, shares the sessions of a small pool. A server that is frozen is left.
"""

from __future__ import annotations

import asyncio
import functools
import math
import select
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import psycopg

from outlive import db, linux
from outlive.humanize import one_line
from outlive.worker import log

T = TypeVar("T")

IDLE_S = 10.0
"""How long a connection stays that nothing uses, and that is only needed at times."""
LARGE_BYTES = 1 << 20
REPLACE_AFTER = 3
"""A connection is replaced after this many equal failures in a row: its settings may be the cause. A read-only one is
replaced at once: sessions may stay read-only when the database is writable again."""
CHECK_S = 1.0
REPEAT_S = 60.0
"""How often at most the log says that there is no other connection: under a limit one opens and another does not."""
SILENT_S = 10.0
"""Patroni promotes no standby sooner than this, and a worker asks the server something every second."""


class Runner(Protocol):
    """What runs statements: a session, or a share of those of a pool."""

    async def run(self, statement: db.Statement[T]) -> T: ...


class Session:
    def __init__(
        self,
        url: str,
        purpose: db.Purpose = db.SERVICE,
        *,
        on_open: Callable[[db.AsyncConnection], Awaitable[None]] | None = None,
        on_idle: Callable[[db.AsyncConnection], None] = lambda _: None,
    ) -> None:
        """`on_open` has each new connection first, and `on_idle` has it when no statement is under way any more."""
        self.url, self.purpose, self._on_open, self._on_idle = url, purpose, on_open, on_idle
        self._in_force = purpose
        self.generation = 0
        """Counts the connections made in place of one that was lost: what was seen on that proves nothing any more."""
        self.answered_at = -math.inf
        self.lacks: str | None = None
        """The right that the role lacked at the last statement."""
        self.asked_at: float | None = None
        """Since when a statement is under way."""
        self.round_trips: Counter[str] = Counter()
        """How many statements have succeeded, by name; several that run together count as one, under the first name."""
        self._connection: db.AsyncConnection | None = None
        self._lock = asyncio.Lock()
        self._failures: dict[str, tuple[str | None, int]] = {}
        """The last error of each statement that fails, and how often in a row it was the same."""
        self._outage = _outage_of(url)
        self._outage.sessions.add(self)
        self._connected_at = 0.0

    @property
    def pooled(self) -> bool:
        return self._connection is not None and self._connection.pooled

    @property
    def is_up(self) -> bool:
        """Whether it is connected and the other end is still there."""
        if self._connection is None or self._connection.closed:
            return False
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLRDHUP)
        return not poll.poll(0)

    @property
    def backend_pid(self) -> int | None:
        """The process of the server that has this session. None without a connection, or if a pooler changes it."""
        return None if self._connection is None or self._connection.closed else self._connection.server_pid

    async def connect(self) -> db.AsyncConnection:
        """The connection, with the settings of its purpose. A broken one is replaced."""
        lost = self._connection is not None
        if self._connection is None or self._connection.closed or self._connection.broken:
            try:
                self._connection = await db.aconnect(self.url, self.purpose)
            except psycopg.OperationalError as error:
                self._outage.refused(error)
                raise
            self.generation += lost or not self.generation
            self._connected_at, self._in_force = time.monotonic(), self.purpose
            self._outage.over()
            if self._on_open is not None:
                try:
                    await self._on_open(self._connection)
                except BaseException:
                    await self._connection.close()
                    raise
        elif self._in_force is not self.purpose and not self._connection.pooled:
            await self._connection.execute(self.purpose.settings.encode())
            self._in_force = self.purpose
        return self._connection

    async def open(self) -> None:
        """Connect, if there is no connection."""
        async with self._turn() as connection:
            self._on_idle(connection)

    async def run(self, statement: db.Statement[T]) -> T:
        async with self._counting_failures(statement.name) as connection:
            return await db.arun(connection, statement)

    async def run_all(self, statements: Sequence[db.Statement[T]]) -> list[T]:
        """Run all of them, or none."""
        async with self._counting_failures("+".join(sorted({one.name for one in statements}))) as connection:
            return await db.arun_all(connection, statements)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[db.AsyncConnection]:
        """The connection, for one statement at a time."""
        async with self._lock:
            self.asked_at = time.monotonic()
            try:
                yield await self.connect()
                self.lacks = None
            except psycopg.Error as error:
                self.lacks = db.missing_right(error)
                raise
            finally:
                self.asked_at = None

    @asynccontextmanager
    async def _counting_failures(self, statement: str) -> AsyncIterator[db.AsyncConnection]:
        """Each statement counts by itself: reads may succeed where writes fail."""
        async with self._turn() as connection:
            try:
                yield connection
            except psycopg.Error as error:
                if (task := asyncio.current_task()) and task.cancelling():
                    raise asyncio.CancelledError from error  # The driver reports a broken connection in its place.
                self.note_loss(error)
                if db.read_only(error) or self._fails_repeatedly(statement, error):
                    await connection.close()
                raise
            finally:
                self._on_idle(connection)
            self._failures.pop(statement, None)
            self.answered_at = time.monotonic()
            self.round_trips[statement.partition("+")[0]] += 1

    def _fails_repeatedly(self, statement: str, error: psycopg.Error) -> bool:
        """Whether a new connection may help; it stays true until the statement succeeds."""
        if not db.may_be_the_session(error):
            return False
        before, times = self._failures.get(statement, (None, 0))
        times = times + 1 if before == error.sqlstate else 1
        self._failures[statement] = (error.sqlstate, times)
        if times == REPLACE_AFTER:
            log.warning("%s failed %d times: its connection is replaced (%s)", statement, times, error.sqlstate)
        return times >= REPLACE_AFTER

    def note_loss(self, error: psycopg.Error) -> None:
        """Remember that the connection is lost, if this error says so."""
        if db.lost(error):
            self._outage.lost(error, self._connected_at)

    def hang_up(self) -> None:
        """Cut the connection under a statement that waits for an answer: it fails at once."""
        if self._connection is not None and not self._connection.closed:
            linux.hang_up(self._connection.fileno())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def close_if_idle(self) -> None:
        """Close the connection if nothing has used it for a while. The next statement makes another one."""
        if not self._lock.locked() and time.monotonic() - max(self.answered_at, self._connected_at) > IDLE_S:
            await self.close()
            self._connection = None


class SessionPool:
    """A few sessions that are connected when they are needed, and closed when they are idle.

    Some shares of it form a group. One session is kept for each group that has none, so that however many statements of
    one group take however long, those of another begin. The others go to the one who asks first.
    """

    def __init__(self, url: str, size: int) -> None:
        self.sessions = [Session(url) for _ in range(size)]
        self._idle = list(self.sessions)
        """The one used last is used first."""
        self._taken: list[int] = []
        """How many sessions each group has."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def share(self, *purposes: db.Purpose) -> tuple[Share, ...]:
        """A share for each purpose. They are one group."""
        self._taken.append(0)
        return tuple(Share(self, len(self._taken) - 1, purpose) for purpose in purposes)

    @asynccontextmanager
    async def take(self, group: int, purpose: db.Purpose) -> AsyncIterator[Session]:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((group, turn))
        self._give_turns()
        try:
            await turn
            session = next((one for one in reversed(self._idle) if one.purpose is purpose), self._idle[-1])
            self._idle.remove(session)
            session.purpose = purpose
            try:
                yield session
            finally:
                self._idle.append(session)
        finally:
            if not turn.cancelled():
                self._taken[group] -= 1
            self._give_turns()

    def _give_turns(self) -> None:
        for group, turn in list(self._waiting):
            kept = sum(not taken for other, taken in enumerate(self._taken) if other != group)
            if turn.cancelled():
                self._waiting.remove((group, turn))
            elif len(self.sessions) - sum(self._taken) > kept:
                self._waiting.remove((group, turn))
                self._taken[group] += 1
                turn.set_result(None)


@dataclass(slots=True, frozen=True)
class Share:
    """The sessions of a pool, for one purpose."""

    pool: SessionPool
    _group: int
    _purpose: db.Purpose

    @asynccontextmanager
    async def take(self, *, size_bytes: int = 0) -> AsyncIterator[Session]:
        """A session for a statement of this size. It is closed after a large one: libpq would keep the buffer."""
        async with self.pool.take(self._group, self._purpose) as session:
            yield session
            if size_bytes > LARGE_BYTES:
                await session.close()

    async def run(self, statement: db.Statement[T]) -> T:
        async with self.take() as session:
            return await session.run(statement)


class Outage:
    """Whether one database is away. All sessions of this process with it share this, and log it once."""

    def __init__(self, url: str) -> None:
        self._where = db.named(url)
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.since: float | None = None
        """Since when a connection is lost and no other was made, by the monotonic clock; None: all is well."""
        self._why = ""
        self._away = False
        self._over_at = self._said_at = -math.inf
        self._crowded_since: float | None = None
        """Since when the server has refused further connections, if that was said."""

    def lost(self, error: psycopg.Error, connected_at: float) -> None:
        """A connection that was made at this time is lost."""
        if self.since is None and connected_at >= self._over_at:  # An older one was lost in the last outage.
            self.since, self._why = time.monotonic(), one_line(error)

    def refused(self, error: psycopg.Error) -> None:
        """No connection can be made, or no further one: a server that refuses some may serve others."""
        if self._away:
            return
        if _answers(error) and any(one.is_up for one in self.sessions):
            if time.monotonic() - self._said_at > REPEAT_S:
                self._crowded_since = self._said_at = time.monotonic()
                log.warning(
                    "can't open another connection to %s (%s): calls of jobs, large results and schedules may be late; "
                    "raise the limit that the error names, or lower the setting `connections`",
                    self._where,
                    one_line(error),
                )
            return
        self._away, self._crowded_since = True, None
        self.since = self.since or time.monotonic()
        log.warning(
            "lost the database %s (%s): running jobs continue and their results are buffered until it is back",
            self._where,
            one_line(error),
        )

    def over(self) -> None:
        """A connection was made."""
        if self._crowded_since is not None:
            lasted_s = time.monotonic() - self._crowded_since
            log.warning("another connection to %s could be opened after %.1f s", self._where, lasted_s)
            self._crowded_since = None
        if self.since is None:
            return
        self._over_at = time.monotonic()
        if self._away:
            log.warning("the database %s is back after %.1f s", self._where, self._over_at - self.since)
        else:
            log.info("a connection to the database was lost, and another one was made at once: %s", self._why)
        self.since, self._away = None, False


def _answers(error: psycopg.Error) -> bool:
    """Whether a server has refused a connection, as one does that is full: libpq gives no code of the error."""
    return error.sqlstate is not None or "FATAL" in str(error)


_outage_of = functools.cache(Outage)


class Silence:
    """Leaves a server that is frozen.

    When a machine is gone, TCP ends its sessions in seconds. One that is frozen, or whose disk hangs, keeps them, while
    another server may have become the primary. If a statement gets no answer for long, the worker asks by a new
    connection whether its session still runs one: it may only be slow, or wait for a synchronous standby.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self._checked_at = 0.0

    async def run_once(self) -> None:
        await asyncio.sleep(CHECK_S)
        late = time.monotonic() - SILENT_S
        asked = [(one, one.asked_at, pid) for one in self._sessions if (pid := one.backend_pid) and one.asked_at]
        asked = [(one, at, pid) for one, at, pid in asked if at < late]
        if not asked or self._checked_at > late:
            return
        if (there := await _found(asked[0][0].url, [pid for _, _, pid in asked])) is None:
            return
        self._checked_at = time.monotonic()
        if any(one.asked_at == at and pid not in there for one, at, pid in asked):
            log.error("the database did not answer for %g s: all connections are made again", SILENT_S)
            for one in self._sessions:
                one.hang_up()


async def _found(url: str, pids: list[int]) -> set[int] | None:
    """Those of these sessions that run a statement on the server that answers now; None if that is not known. Another
    server may have sessions of the same numbers, but most are idle."""
    try:
        connection = await db.aconnect(url)
    except psycopg.OperationalError as error:
        return None if _answers(error) else set()
    async with connection:
        query = "select pid from pg_stat_get_activity(null) where pid = any(%s) and coalesce(state, '') <> 'idle'"
        return {pid async for (pid,) in await connection.execute(query, [pids])}
