"""How statements reach Postgres: connections, and whose fault an error is.

A `Statement` is a value; `run` and `arun` are the one difference between sync and async callers. Nothing here
knows what a statement means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self, TypeVar
from uuid import UUID

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext, Buffer, DumperKey
from psycopg.adapt import Dumper, Loader, PyFormat
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from outlive.errors import (
    BadArguments,
    DatabaseBusy,
    DatabaseUnreachable,
    DuplicateJob,
    OutliveError,
    SchemaMismatch,
    StaleAttempt,
)
from outlive.statement import Column
from outlive.statement import Row as Row
from outlive.statement import Statement as Statement

T = TypeVar("T")
AsyncConnection = psycopg.AsyncConnection[Row]
AnyCursor = psycopg.RawCursor[Row] | psycopg.AsyncRawCursor[Row]

# Plans of the hot statements are pinned: the tables they touch change too fast for statistics to be true.
PINNED = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off; "
    "set enable_mergejoin = off; set enable_bitmapscan = off; set jit = off"
)
# A server that is silently gone is noticed in seconds, and not in the two hours of the kernel's defaults.
_NOTICE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_NOTICE_FAST = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 4_000}
# The server notices as fast that such a client is gone (any of these alone can hang for minutes), and does not end it.
_WATCHED = (
    "set tcp_keepalives_idle = 2; set tcp_keepalives_interval = 1; set tcp_keepalives_count = 2; "
    "set tcp_user_timeout = 4000; set client_connection_check_interval = 1000; "
    "set statement_timeout = 0; set lock_timeout = 0; set idle_session_timeout = 0; "
    "set idle_in_transaction_session_timeout = 0"
)
# A role's or a database's own limits are made for other statements: 3 s would keep a large end from being written.
_OWN_LIMITS = (
    "set lock_timeout = {lock_ms}; set statement_timeout = {statement_ms}; set idle_session_timeout = 0; "
    "set idle_in_transaction_session_timeout = 0"
)
HOT_LOCK_S = 0.1
LOCK_S = 5.0
STATEMENT_S = 60.0
_MISSING_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703"})
_NOT_THE_SESSION = frozenset({"OL", "22", "23", "40", "53", "55", "57"})
_BUSY = {
    "55P03": "another transaction holds a lock that this needs, for longer than it waits; nothing was written: "
    "try again, and see pg_locks for the transaction",
    "57014": "the server ended the statement before it was done; nothing was written",
}
_TRANSIENT = frozenset({"40001", "40P01", "57P01", "57P02", "57P03", "53300", "08000", "08003", "08006"})


class Connection(psycopg.Connection[Row]):
    """One of ours. It keeps a cursor for life: making one costs a tenth of an enqueue."""

    _kept: psycopg.RawCursor[Row] | None = None

    def kept_cursor(self) -> psycopg.RawCursor[Row]:
        if self._kept is None:
            self._kept = _cursor(self)
        return self._kept


def _cursor(connection: psycopg.Connection[Any]) -> psycopg.RawCursor[Row]:
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    cursor.format = pq.Format.BINARY
    return cursor


def run(connection: psycopg.Connection[Any], statement: Statement[T], *, foreign: bool = False) -> T:
    """Run it on a connection of ours, or on a `foreign` one, which is left as it was."""
    if isinstance(connection, Connection) and not foreign:
        cursor = connection.kept_cursor()
    else:
        cursor = _cursor(connection)
        adapt(cursor)
    cursor.execute(statement.text, statement.parameters, prepare=statement.hot or None)
    return _decoded(statement, cursor, cursor.fetchall() if _has_rows(cursor) else [])


async def arun(connection: psycopg.AsyncConnection[Any], statement: Statement[T], *, foreign: bool = False) -> T:
    """The async twin of `run`."""
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    if foreign:
        adapt(cursor)
    cursor.format = pq.Format.BINARY
    await cursor.execute(statement.text, statement.parameters, prepare=statement.hot or None)
    return _decoded(statement, cursor, await cursor.fetchall() if _has_rows(cursor) else [])


def run_all(
    connection: psycopg.Connection[Any], statements: Sequence[Statement[T]], *, foreign: bool = False
) -> list[T]:
    """All or none of them."""
    with connection.transaction() if _needs_transaction(connection, statements) else nullcontext():
        return [run(connection, statement, foreign=foreign) for statement in statements]


async def arun_all(
    connection: psycopg.AsyncConnection[Any], statements: Sequence[Statement[T]], *, foreign: bool = False
) -> list[T]:
    """The async twin of `run_all`."""
    async with connection.transaction() if _needs_transaction(connection, statements) else nullcontext():
        return [await arun(connection, statement, foreign=foreign) for statement in statements]


def _needs_transaction(connection: psycopg.BaseConnection[Any], statements: Sequence[object]) -> bool:
    """Only where each statement would commit by itself: in a transaction that psycopg began for its caller,
    a block of ours could be the outermost one, and its end would commit."""
    return connection.autocommit and len(statements) > 1


def _has_rows(cursor: AnyCursor) -> bool:
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _decoded(statement: Statement[T], cursor: AnyCursor, rows: list[Row]) -> T:
    names = [column.name for column in cursor.description or ()] if statement.named else ()
    return statement.decode(names, rows)


def connect(url: str, *, hot: bool = False) -> Connection:
    """A connection that commits each statement; `hot` pins the plans of the statements that claim."""
    connection = Connection.connect(_noticing(url, _NOTICE), autocommit=True, connect_timeout=10)
    adapt(connection)
    row = connection.execute("select pg_backend_pid()").fetchone()
    if row != (connection.info.backend_pid,):
        connection.prepare_threshold = _POOLED
    elif hot:
        connection.execute(PINNED)
    return connection


async def aconnect(
    url: str,
    *,
    hot: bool = False,
    watched: bool = False,
    lock_s: float | None = None,
    statement_s: float = STATEMENT_S,
) -> AsyncConnection:
    """The async twin of `connect`. On a `watched` one both sides notice within seconds that the other is gone; with
    `lock_s` no statement waits longer for another transaction's lock, or takes longer than `statement_s` in all.
    """
    connection = await psycopg.AsyncConnection.connect(
        _noticing(url, _NOTICE_FAST if watched else _NOTICE), autocommit=True, connect_timeout=10
    )
    adapt(connection)
    cursor = await connection.execute("select pg_backend_pid()")
    if await cursor.fetchone() != (connection.info.backend_pid,):
        connection.prepare_threshold = _POOLED
    elif watched:
        await connection.execute(_WATCHED)
    elif lock_s is not None:
        limits = _OWN_LIMITS.format(lock_ms=round(lock_s * 1000), statement_ms=round(statement_s * 1000))
        await connection.execute((f"{PINNED}; {limits}" if hot else limits).encode())
    return connection


_POOLED = None  # A pooler in transaction mode would run a prepared statement where nobody prepared it.


def pooled(connection: psycopg.BaseConnection[Any]) -> bool:
    """Whether there is a pooler between us and the server, in transaction mode: its sessions are not ours."""
    return connection.prepare_threshold is _POOLED


def _noticing(url: str, how: Mapping[str, int]) -> str:
    """The address with our settings; what it says itself comes first. All texts are UTF-8, whatever others ask for."""
    said = {"application_name": "outlive", **how, **conninfo_to_dict(url)}
    return make_conninfo("", **{**said, "client_encoding": "UTF8"})


def transient(error: psycopg.Error) -> bool:
    """Worth repeating on a new connection: the server went away, or two transactions stood in each other's way."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate in _TRANSIENT
    )


def may_be_the_session(error: psycopg.Error) -> bool:
    """Whether a new connection may do what this one can't: sessions keep a role, a search_path and a read-only mode."""
    return error.sqlstate is not None and error.sqlstate[:2] not in _NOT_THE_SESSION


@contextmanager
def translated_errors(*, foreign: bool = False) -> Iterator[None]:
    """Turn what the driver raises into errors that say whose fault it is.

    On a foreign connection only what is about our job: the rest is about its owner's transaction, who may well
    want to repeat it after a serialisation failure.
    """
    try:
        yield
    except psycopg.Error as error:
        said = error.diag.message_primary or str(error).strip() or type(error).__name__
        if error.sqlstate == "OL001":
            existing = error.diag.message_detail
            raise DuplicateJob(said, UUID(existing) if existing else None) from None
        if error.sqlstate == "OL002":
            raise StaleAttempt(said) from None
        if error.sqlstate == "OL003":
            raise BadArguments(said) from None
        if error.sqlstate in _MISSING_SCHEMA:
            hint = "run `outlive migrate`"
            raise SchemaMismatch(f"the database has not the schema of this version ({said}): {hint}") from error
        if foreign:
            raise
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            raise BadArguments(said) from error
        if error.sqlstate in _BUSY:
            raise DatabaseBusy(f"{_BUSY[error.sqlstate]} ({said})") from error
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise DatabaseUnreachable(f"the database can't be reached: {said}") from error
        raise OutliveError(f"the database refused: {said}") from error


class _ColumnDumper(Dumper):
    """Sends a column as it is, under its own oid: psycopg keeps one such dumper for each."""

    format = pq.Format.BINARY

    def get_key(self, obj: Column, format: PyFormat) -> DumperKey:
        return (self.cls, obj.array)  # type: ignore[return-value]  # Any hashable key is kept apart.

    def upgrade(self, obj: Column, format: PyFormat) -> Self:
        dumper = type(self)(self.cls)
        dumper.oid = obj.array
        return dumper

    def dump(self, obj: Column) -> Buffer:
        return obj.data


class _RawJson(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class _RawJsonb(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]  # Without the byte that says the version of the format.


def adapt(context: AdaptContext) -> None:
    """Columns go as they are, and JSON comes as raw bytes: who wants to look inside decodes it."""
    context.adapters.register_dumper(Column, _ColumnDumper)
    context.adapters.register_loader("json", _RawJson)
    context.adapters.register_loader("jsonb", _RawJsonb)
