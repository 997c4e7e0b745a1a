"""How statements reach Postgres: connections, parameters in bulk, and whose fault an error is.

A `Statement` is a value; `run` and `arun` are the one difference between sync and async callers. Nothing here
knows what a statement means.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

import msgspec
import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext, Buffer, DumperKey
from psycopg.adapt import Dumper, Loader, PyFormat
from psycopg.rows import tuple_row

from outlive.errors import (
    BadArguments,
    DatabaseUnreachable,
    DuplicateJob,
    OutliveError,
    SchemaMismatch,
    StaleAttempt,
)

T = TypeVar("T")
Row = tuple[Any, ...]
AsyncConnection = psycopg.AsyncConnection[Row]
AnyCursor = psycopg.RawCursor[Row] | psycopg.AsyncRawCursor[Row]

# Plans of the hot statements are pinned: the tables they touch change too fast for statistics to be true.
PINNED = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off; "
    "set enable_mergejoin = off; set enable_bitmapscan = off; set jit = off"
)
_MISSING_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703"})
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


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A statement with its parameters, and what its rows mean. `hot` ones are prepared at once.

    The columns' names, which are dear, are there for those that say `named`.
    """

    name: str
    text: bytes
    parameters: tuple[object, ...]
    decode: Callable[[Sequence[str], list[Row]], T]
    hot: bool = False
    named: bool = False


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
    connection = Connection.connect(url, autocommit=True, connect_timeout=10, application_name="outlive")
    adapt(connection)
    pooled = connection.execute("select pg_backend_pid()").fetchone() != (connection.info.backend_pid,)
    if pooled:  # A pooler in transaction mode would run a prepared statement where nobody prepared it.
        connection.prepare_threshold = None
    elif hot:
        connection.execute(PINNED)
    return connection


async def aconnect(url: str, *, hot: bool = False) -> AsyncConnection:
    connection = await psycopg.AsyncConnection.connect(
        url, autocommit=True, connect_timeout=10, application_name="outlive"
    )
    adapt(connection)
    cursor = await connection.execute("select pg_backend_pid()")
    if await cursor.fetchone() != (connection.info.backend_pid,):
        connection.prepare_threshold = None
    elif hot:
        await connection.execute(PINNED)
    return connection


def transient(error: psycopg.Error) -> bool:
    """Worth repeating on a new connection: the server went away, or two transactions stood in each other's way."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate in _TRANSIENT
    )


@contextmanager
def blamed(*, foreign: bool = False) -> Iterator[None]:
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
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise DatabaseUnreachable(f"the database can't be reached: {said}") from error
        raise OutliveError(f"the database refused: {said}") from error


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of array parameter: the oids of its elements and of the array, and how an element is written."""

    element: int
    array: int
    write: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Column:
    """An array parameter in Postgres' binary form: its elements are written once, and read without a cast."""

    array: int
    data: bytes


def column(kind: Kind, values: Iterable[object]) -> Column | None:
    """The values as one array parameter; null if there is nothing but nulls."""
    parts = []
    nulls = 0
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
            nulls += 1
        else:
            data = kind.write(value)
            parts.append(len(data).to_bytes(4, "big") + data)
    if not parts:
        return Column(kind.array, struct.pack(">iiI", 0, 0, kind.element))
    if nulls == len(parts):
        return None
    head = struct.pack(">iiIii", 1, nulls > 0, kind.element, len(parts), 1)
    return Column(kind.array, head + b"".join(parts))


def _microseconds(moment: datetime) -> bytes:
    return struct.pack(">q", (moment - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


BIGINTS = Kind(20, 1016, struct.Struct(">q").pack)
INTS = Kind(23, 1007, struct.Struct(">i").pack)
SMALLINTS = Kind(21, 1005, struct.Struct(">h").pack)
FLOATS = Kind(701, 1022, struct.Struct(">d").pack)
BOOLEANS = Kind(16, 1000, struct.Struct(">?").pack)
TEXTS = Kind(25, 1009, str.encode)
UUIDS = Kind(2950, 2951, lambda value: value.bytes)
JSONS = Kind(114, 199, lambda value: value)
JSONBS = Kind(3802, 3807, lambda value: b"\1" + value)
TIMES = Kind(1184, 1185, _microseconds)


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


# Statements that travel: a job has no connection, and its supervisor runs them by their names.

_UUID, _COLUMN = 1, 2


def ask(statements: Sequence[Statement[Any]]) -> bytes:
    """Statements as bytes: names and parameters, no text."""
    return msgspec.msgpack.encode([(one.name, [_travelling(value) for value in one.parameters]) for one in statements])


def read_asked(body: bytes) -> list[tuple[str, list[object]]]:
    return msgspec.msgpack.decode(body, type=list[tuple[str, list[Any]]], ext_hook=_arrived)


def answer(results: Sequence[tuple[Sequence[str], list[Row]]]) -> bytes:
    """What the statements gave, as bytes."""
    return msgspec.msgpack.encode([(names, [[_travelling(v) for v in row] for row in rows]) for names, rows in results])


def read_answers(statements: Sequence[Statement[T]], body: bytes) -> list[T]:
    answers = msgspec.msgpack.decode(body, type=list[tuple[list[str], list[tuple[Any, ...]]]], ext_hook=_arrived)
    return [one.decode(names, rows) for one, (names, rows) in zip(statements, answers, strict=True)]


def _travelling(value: object) -> object:
    match value:
        case UUID():
            return msgspec.msgpack.Ext(_UUID, value.bytes)
        case Column():
            return msgspec.msgpack.Ext(_COLUMN, value.array.to_bytes(4, "big") + value.data)
        case datetime():
            return value.astimezone(UTC)
        case _:
            return value


def _arrived(code: int, data: memoryview) -> object:
    if code == _UUID:
        return UUID(bytes=bytes(data))
    return Column(int.from_bytes(data[:4], "big"), bytes(data[4:]))
