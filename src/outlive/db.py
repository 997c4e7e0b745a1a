"""How statements reach Postgres: connections for each purpose, and the translation of the driver's errors.

A `Statement` is a value; `run` and `arun` are the only difference between sync and async callers. This module does
not know what a statement means.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, cast

import msgspec
import psycopg
from psycopg import abc, generators, pq
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGresult

from outlive import pooling, search_path
from outlive.binary import packed, read_json_raw
from outlive.errors import BadArguments, DatabaseBusy, DatabaseUnreachable, MissingRight, OutliveError, of_sqlstate
from outlive.statement import Row as Row
from outlive.statement import Statement as Statement

T = TypeVar("T")


class Purpose(msgspec.Struct, frozen=True):
    """What a connection is for: how soon either end notices that the other is gone, and the session's settings."""

    keepalives: Mapping[str, int]
    settings: str = ""
    check_ms: int | None = None
    """How often the server looks whether the client has hung up, as it does if it gives up a read. Without that, a
    statement that waits for a lock keeps its session. None: as the server is configured."""


def _limited(*, lock_s: float, statement_s: float) -> str:
    """Time limits and the level of isolation, which replace those of the role and the database: these are made for
    other statements."""
    return (
        "set default_transaction_isolation = 'read committed'; "
        f"set lock_timeout = {round(lock_s * 1000)}; set statement_timeout = {round(statement_s * 1000)}; "
        "set idle_session_timeout = 0; set idle_in_transaction_session_timeout = 0"
    )


# With the kernel's defaults a client notices only after two hours that its server is gone.
_SECONDS = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_FEW_SECONDS = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 4_000}
# The plan of a claim is pinned: the tables that it reads change too fast for their statistics.
_PINNED = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off; "
    "set enable_mergejoin = off; set enable_bitmapscan = off"
)

PLAIN = Purpose(_SECONDS, check_ms=100)
"""Clients and commands."""
HASTY = Purpose(_SECONDS, "set lock_timeout = 100", check_ms=100)
"""Clients' statements that are repeated if they wait for a lock."""
PINNED = Purpose(_SECONDS, _PINNED)
"""Claims without limits of time: benchmarks and tests."""
CLAIMS = Purpose(_SECONDS, f"{_PINNED}; {_limited(lock_s=0.1, statement_s=60)}")
"""A worker's claims, which wait for no other transaction."""
SERVICE = Purpose(_SECONDS, _limited(lock_s=5, statement_s=60))
"""The other statements of a worker."""
PAGES = Purpose(_FEW_SECONDS, f"{_limited(lock_s=1, statement_s=2)}; set default_transaction_read_only = on")
"""What the dashboard reads: a page that takes longer is not worth its cost to the server."""
ACTIONS = Purpose(_SECONDS, _limited(lock_s=5, statement_s=30))
"""What operators do on the dashboard."""
FIRINGS = Purpose(_SECONDS, _limited(lock_s=0.5, statement_s=60))
"""Schedules. Their firings follow one after the other, so none waits for long."""
COMPLETIONS = Purpose(_SECONDS, _limited(lock_s=0.2, statement_s=120))
"""Ends of attempts that are large or wait for a lock; none waits for long, because others may wait behind it. A lease
that expires meanwhile is no danger: the statement has locked the attempt."""
CALLS = Purpose(_SECONDS, _limited(lock_s=0.1, statement_s=60))
"""What jobs ask for. A call that waits for a lock makes room for others, and is tried again."""
METRICS = Purpose(_SECONDS, _limited(lock_s=1, statement_s=5))
"""Figures for Prometheus, which are left out if they take longer."""
LIVENESS = Purpose(
    _FEW_SECONDS,
    # The server notices as fast as the client that the other end is gone. Each of these alone can take minutes.
    "set tcp_keepalives_idle = 2; set tcp_keepalives_interval = 1; set tcp_keepalives_count = 2; "
    "set tcp_user_timeout = 4000; set client_connection_check_interval = 1000; "
    # A database whose sessions are read-only by default still learns who is alive: the disk may be full, and every
    # worker would be declared dead when it can be written again.
    "set default_transaction_read_only = off; "
    f"{_limited(lock_s=0.2, statement_s=10)}",
)
"""The session whose lock shows that a worker is alive, and which listens. The server never ends it. It delivers no
notification while a statement runs: one that takes long lets jobs that are enqueued meanwhile begin late."""

_NOT_THE_SESSION = frozenset({"OL", "22", "23", "40", "53", "55", "57"})
_NO_RIGHT = "42501"
_BUSY = {
    "55P03": "another transaction holds a lock that this statement needs; nothing was written: "
    "try again; `outlive doctor` names the session",
    "57014": "the server cancelled the statement; nothing was written",
    "25006": "the database is read-only now; nothing was written",
}
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "53300")
_TRANSIENT = frozenset({"40001", "40P01", "57P01", "57P02", "57P03", "57P05", "53300", "08000", "08003", "08006"})
_FULL = re.compile("too many (connections|clients)|remaining connection slots|no more connections allowed")
_RAISE = (
    "raise the limit of connections that it names, or lower the setting `connections` of the workers; "
    "a superuser is not bound by the limit of a role"
)
_OF_OWNER = re.compile("must be owner|denied for database")
_numbers = itertools.count()
SOON_MS = 100


class _Own(psycopg.BaseConnection[Row]):
    """A connection of ours. psycopg prepares nothing on it, and runs our statements without a cursor, which would cost
    a tenth of an enqueue."""

    pooled = False
    """Whether a pooler in transaction mode is between us and the server, so that sessions change under us."""
    server_pid: int | None = None
    """The process of the server that has the session of a worker: a pooler in session mode tells another number."""

    @cached_property
    def prepared(self) -> dict[bytes, bytes]:
        """The statements that were sent, with the names under which they are prepared, or none."""
        return {}

    @cached_property
    def transformer(self) -> abc.Transformer:
        return Transformer(self)

    def name_to_prepare(self, text: bytes) -> bytes | None:
        """The name for a statement that is to be prepared, as it is when it is used again. A pooler would run a
        prepared statement in a session that did not prepare it."""
        if self.prepared.get(text) != b"" or self.pooled:
            return None
        # A number of its own: Ctrl-C may keep us from learning that the server has prepared it already.
        return b"outlive_%d" % next(_numbers)

    def send(self, statement: Statement[Any]) -> None:
        values = packed(statement)
        formats = [_BINARY] * len(values)
        if name := self.prepared.get(statement.text):
            self.pgconn.send_query_prepared(name, values, formats, result_format=_BINARY)
        else:
            self.pgconn.send_query_params(statement.text, values, param_formats=formats, result_format=_BINARY)
            self.prepared[statement.text] = b""


class Connection(_Own, psycopg.Connection[Row]):
    until: float | None = None
    """When (monotonic) to give up a statement that has no answer."""

    @cached_property
    def _readable(self) -> select.poll:
        readable = select.poll()
        readable.register(self.pgconn.socket, select.POLLIN)
        return readable

    def finish(self) -> PGresult:
        """Read the answer to what was sent. Most come soon; psycopg's own wait, which takes longer, is for others."""
        pgconn, results = self.pgconn, []
        # Without poll, which eventlet takes away, psycopg finds another way to wait.
        if hasattr(select, "poll") and pgconn.flush() == 0 and self._readable.poll(SOON_MS):
            pgconn.consume_input()
            while not pgconn.is_busy() and (result := pgconn.get_result()) is not None:
                results.append(result)
        if pgconn.transaction_status == _ACTIVE:
            results += self.wait(generators.execute(pgconn))
        return _last(results)

    def wait(self, gen: PQGen[T], *args: Any, **more: Any) -> T:
        return super().wait(gen if self.until is None else bounded(gen, self.until), *args, **more)


class AsyncConnection(_Own, psycopg.AsyncConnection[Row]):
    """The async twin of `Connection`."""

    async def finish(self) -> PGresult:
        return _last(await self.wait(generators.execute(self.pgconn)))


def _last(results: Sequence[PGresult]) -> PGresult:
    """The last one counts: the error of a commit follows the answer to its statement."""
    if results[-1].status not in _DONE:
        raise psycopg.errors.error_from_result(results[-1])
    return results[-1]


def bounded(gen: PQGen[T], until: float) -> PQGen[T]:
    """The same work, which raises when the time is up. psycopg wakes it ten times per second."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= until:
                raise psycopg.OperationalError("the server did not answer in time")
            wanted = gen.send(ready)
    except StopIteration as end:
        return cast("T", end.value)


# Python 3.11 takes long to find a member of an enum.
_BINARY, _ACTIVE, _IDLE = pq.Format.BINARY, pq.TransactionStatus.ACTIVE, pq.TransactionStatus.IDLE
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


def run(connection: Connection, statement: Statement[T]) -> T:
    if connection.pooled and not search_path.is_call(statement.text):  # The session can't be pinned.
        if _commits_each(connection):
            with connection.transaction():
                return run(connection, statement)
        connection.execute(search_path.PIN)
    if name := connection.name_to_prepare(statement.text):
        connection.pgconn.send_prepare(name, statement.text)
        connection.finish()
        connection.prepared[statement.text] = name
    connection.send(statement)
    return _decoded(connection, statement, connection.finish())


async def arun(connection: AsyncConnection, statement: Statement[T]) -> T:
    """The async twin of `run`."""
    if connection.pooled and not search_path.is_call(statement.text):
        if _commits_each(connection):
            async with connection.transaction():
                return await arun(connection, statement)
        await connection.execute(search_path.PIN)
    async with connection.lock:
        if name := connection.name_to_prepare(statement.text):
            connection.pgconn.send_prepare(name, statement.text)
            await connection.finish()
            connection.prepared[statement.text] = name
        connection.send(statement)
        result = await connection.finish()
    return _decoded(connection, statement, result)


def _decoded(connection: _Own, statement: Statement[T], result: PGresult) -> T:
    rows: list[Any] = []
    if result.ntuples:
        connection.transformer.set_pgresult(result)
        rows = connection.transformer.load_rows(0, result.ntuples, tuple)
    if statement.named:
        names = [(result.fname(n) or b"").decode() for n in range(result.nfields)]
        rows = [dict(zip(names, row, strict=True)) for row in rows]
    return statement.decode(rows)


def run_all(connection: Connection, statements: Sequence[Statement[T]]) -> list[T]:
    """Run all of the statements, or none of them."""
    if not _needs_transaction(connection, statements):
        return [run(connection, statement) for statement in statements]
    with connection.transaction():
        return [run(connection, statement) for statement in statements]


async def arun_all(connection: AsyncConnection, statements: Sequence[Statement[T]]) -> list[T]:
    """The async twin of `run_all`."""
    if not _needs_transaction(connection, statements):
        return [await arun(connection, statement) for statement in statements]
    async with connection.transaction():
        return [await arun(connection, statement) for statement in statements]


def _needs_transaction(connection: psycopg.BaseConnection[Any], statements: Sequence[object]) -> bool:
    """Whether each statement would commit by itself. Without autocommit psycopg begins a transaction for its caller;
    a block of ours could become the outermost one, and its end would commit the caller's work."""
    return len(statements) > 1 and connection.autocommit


def connect(url: str, purpose: Purpose = PLAIN) -> Connection:
    """A connection that commits each statement."""
    with _without_password(url):
        connection = Connection.connect(_conninfo(url, purpose), autocommit=True, prepare_threshold=None)
    read_json_raw(connection)
    pin = search_path.pin_session(connection.info.backend_pid, purpose.check_ms)
    if connection.execute(pin).fetchone() is None:
        connection.pooled = True
    elif purpose.settings:
        connection.execute(purpose.settings.encode())
    return connection


async def aconnect(url: str, purpose: Purpose = PLAIN) -> AsyncConnection:
    """The async twin of `connect`. Workers use it, so it also notices that a pooler keeps sessions."""
    with _without_password(url):
        connection = await AsyncConnection.connect(_conninfo(url, purpose), autocommit=True, prepare_threshold=None)
    read_json_raw(connection)
    cursor = await connection.execute(search_path.pin_session(connection.info.backend_pid, purpose.check_ms))
    if (pinned := await cursor.fetchone()) is None:
        connection.pooled = not await asyncio.to_thread(pooling.keeps_sessions, _conninfo(url, purpose))
        if not connection.pooled:
            cursor = await connection.execute(search_path.pin_session(None, purpose.check_ms))
            pinned = await cursor.fetchone()
    connection.server_pid = pinned[0] if pinned else None
    if purpose.settings and not connection.pooled:
        await connection.execute(purpose.settings.encode())
    return connection


def _commits_each(connection: psycopg.BaseConnection[Any]) -> bool:
    return connection.pgconn.transaction_status == _IDLE


def _conninfo(url: str, purpose: Purpose) -> str:
    """The address with our settings. What the address itself says wins, except that texts are always UTF-8."""
    given = conninfo_to_dict(url)
    # For each host. One of several may be frozen and answer none, while another one is the primary.
    connect_s = 2 if "," in f"{given.get('host')}{given.get('hostaddr')}" else 10
    parameters = {"application_name": "outlive", "connect_timeout": connect_s, **purpose.keepalives, **given}
    return make_conninfo("", **{**parameters, "client_encoding": "UTF8"})


@contextmanager
def _without_password(url: str) -> Iterator[None]:
    """Errors that don't quote the password: it may also stand where libpq expects something else."""
    try:
        yield
    except psycopg.Error as error:
        password = str(conninfo_to_dict(url).get("password") or "")
        if password and password in str(error):
            error.args = (str(error).replace(password, "***"),)
            raise error from None
        raise


def transient(error: psycopg.Error) -> bool:
    """Whether a repetition on a new connection may work: the server went away, or two transactions conflicted."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate in _TRANSIENT
    )


def lost(error: BaseException) -> bool:
    """Whether this error means that a connection is lost, or can't be made."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith(_LOST)
    )


def read_only(error: psycopg.Error) -> bool:
    """Whether the session, or the whole server, may not write."""
    return error.sqlstate == "25006"


def named(url: str) -> str:
    """The database of this address, as log lines name it: without user and password."""
    parts = conninfo_to_dict(url)
    place = ":".join(str(parts[key]) for key in ("host", "port") if parts.get(key))
    name = parts.get("dbname") or "of the default name"
    return f"{name} at {place}" if place else str(name)


def may_be_the_session(error: psycopg.Error) -> bool:
    """Whether a new connection may work where this one fails: a session keeps its role, search_path and mode."""
    return error.sqlstate is not None and error.sqlstate[:2] not in _NOT_THE_SESSION


def summary(error: Exception) -> str:
    """What an error says, in one line: without the statement that the driver's errors quote."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).strip() or type(error).__name__


def missing_right(error: psycopg.Error) -> str | None:
    """What was refused and what to do, if the role lacks a right."""
    if error.sqlstate != _NO_RIGHT:
        return None
    said = summary(error)
    role = "outlive_owner" if _OF_OWNER.search(said) else "outlive_worker (to enqueue, outlive_enqueue is enough)"
    return f"the database refused: {said}; run this as a member of {role}"


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the driver's errors into errors that say whose fault they are and what to do."""
    try:
        yield
    except psycopg.Error as error:
        text = summary(error)
        if ours := of_sqlstate(error.sqlstate or "", text, error.diag.message_detail):
            raise ours from None
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            raise BadArguments(text) from error
        if error.sqlstate in _BUSY:
            raise DatabaseBusy(f"{_BUSY[error.sqlstate]} ({text})") from error
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            cure = f"; {_RAISE}" if _FULL.search(text) else ""
            raise DatabaseUnreachable(f"the database can't be reached: {text}{cure}") from error
        if lacks := missing_right(error):
            raise MissingRight(lacks) from error
        raise OutliveError(f"the database refused: {text}") from error
