"""The caller's own connection: our statements run in its transaction, whichever library it comes from.

Every library takes a text with values, and gives rows back. A statement has the same form for all of them: each
parameter is text, which the server casts (`$1::text::uuid[]`), because the caller may have changed how its library
sends and reads uuids, JSON and arrays. A library is known by the names of its classes, so none is imported that the
caller does not use.

What is done is written once, as generators that yield what a library returns: its answer, or an awaitable of it. So
only `run_all` and `arun_all` differ.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Container, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from outlive import errors
from outlive.errors import WrongConnection
from outlive.statement import Row, Statement, acarry_out, carry_out

if TYPE_CHECKING:
    import psycopg

    # Protocols instead of classes: a caller has only some of the libraries, and type checkers can't see the others.
    class _Rows(Protocol):
        def fetchall(self) -> Sequence[Any]: ...

    class SqlAlchemyConnection(Protocol):
        def exec_driver_sql(self, statement: str, /) -> _Rows: ...

    class SqlAlchemySession(Protocol):
        def connection(self) -> SqlAlchemyConnection: ...

    class DjangoConnection(Protocol):
        vendor: str
        in_atomic_block: bool

    class AsyncpgConnection(Protocol):
        def fetch(self, query: str, /) -> Awaitable[list[Any]]: ...
        def is_in_transaction(self) -> bool: ...

    class SqlAlchemyAsyncConnection(Protocol):
        def exec_driver_sql(self, statement: str, /) -> Awaitable[_Rows]: ...

    class SqlAlchemyAsyncSession(Protocol):
        def connection(self) -> Awaitable[SqlAlchemyAsyncConnection]: ...

    SyncConnection = psycopg.Connection[Any] | SqlAlchemyConnection | SqlAlchemySession | DjangoConnection
    AsyncConnection = (
        psycopg.AsyncConnection[Any] | AsyncpgConnection | SqlAlchemyAsyncConnection | SqlAlchemyAsyncSession
    )
    AnyConnection = SyncConnection | AsyncConnection

T = TypeVar("T")
Values = Sequence[str | None]
Steps = Generator[Any, Any, T]
_PARAMETER = re.compile(r"\$(\d+)::")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Borrowed(Protocol):
    """A connection, sync or async. `numbered`: parameters are written $1, and otherwise %s."""

    numbered: bool

    def commits_each(self) -> bool:
        """Whether a statement would commit by itself, because no transaction is open and none would begin."""

    def execute(self, text: str, values: Values) -> Steps[Sequence[Row]]: ...


class _Psycopg:
    numbered = True

    def __init__(self, connection: Any) -> None:
        import psycopg
        from psycopg.rows import tuple_row

        is_async = isinstance(connection, psycopg.AsyncConnection)
        cursor: Any = psycopg.AsyncRawCursor if is_async else psycopg.RawCursor
        self._connection, self._cursor = connection, cursor(connection, row_factory=tuple_row)

    def commits_each(self) -> bool:
        """Without autocommit psycopg begins a transaction for its caller."""
        return bool(self._connection.autocommit) and self._connection.info.transaction_status.name == "IDLE"

    def execute(self, text: str, values: Values) -> Steps[Sequence[Row]]:
        yield self._cursor.execute(text.encode(), values)
        return (yield self._cursor.fetchall()) if self._cursor.description else []


class _Asyncpg:
    """A connection of asyncpg, also one that its pool has lent."""

    numbered = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def commits_each(self) -> bool:
        return not self._connection.is_in_transaction()

    def execute(self, text: str, values: Values) -> Steps[Sequence[Row]]:
        rows = yield self._connection.fetch(text, *values)
        return [tuple(row) for row in rows]


class _SqlAlchemy:
    """A connection or session of SQLAlchemy. What it executes begins its transaction, if none is open."""

    def __init__(self, connection: Any) -> None:
        _expect_postgres(connection.dialect.name)
        self._connection = connection
        self.numbered = connection.dialect.paramstyle == "numeric_dollar"

    def commits_each(self) -> bool:
        connection = getattr(self._connection, "sync_connection", self._connection)
        return bool(connection.connection.dbapi_connection.autocommit)

    def execute(self, text: str, values: Values) -> Steps[Sequence[Row]]:
        result = yield self._connection.exec_driver_sql(text, tuple(values))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class _Django:
    """Django's connection, as django.db.connection or connections["alias"]."""

    numbered = False

    def __init__(self, connection: Any) -> None:
        _expect_postgres(connection.vendor)
        self._connection = connection

    def commits_each(self) -> bool:
        return not self._connection.in_atomic_block and bool(self._connection.get_autocommit())

    def execute(self, text: str, values: Values) -> Steps[Sequence[Row]]:
        with self._connection.cursor() as cursor:
            yield cursor.execute(text, values)
            return cursor.fetchall() if cursor.description else []


def _expect_postgres(database: str) -> None:
    if database != "postgresql":
        raise WrongConnection(
            f"connection leads to {database}: jobs are in Postgres, and only its transactions take them"
        )


_SYNC: dict[str, Callable[[Any], Borrowed]] = {
    "psycopg.Connection": _Psycopg,
    "sqlalchemy.engine.base.Connection": _SqlAlchemy,
    "sqlalchemy.orm.session.Session": _SqlAlchemy,
    "sqlalchemy.orm.scoping.scoped_session": _SqlAlchemy,
    "django.utils.connection.ConnectionProxy": _Django,
    "django.db.backends.base.base.BaseDatabaseWrapper": _Django,
}
_ASYNC: dict[str, Callable[[Any], Borrowed]] = {
    "psycopg.AsyncConnection": _Psycopg,
    "asyncpg.connection.Connection": _Asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _Asyncpg,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _SqlAlchemy,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _SqlAlchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _SqlAlchemy,
}
"""The classes that are taken, by module and name."""
_SESSIONS = frozenset(name for name in {*_SYNC, *_ASYNC} if name.lower().endswith("session"))


def borrow(connection: Any, otherwise: str) -> Borrowed:
    """A sync connection to run statements on. WrongConnection, before anything is written, if it can't be used.

    `otherwise` says what to do with an async one.
    """
    name = _known(connection, _SYNC, _ASYNC, f"is async: {otherwise}")
    return _SYNC[name](connection.connection() if name in _SESSIONS else connection)


async def aborrow(connection: Any, otherwise: str) -> Borrowed:
    """The async twin of `borrow`."""
    name = expect_async(connection, otherwise)
    return _ASYNC[name](await connection.connection() if name in _SESSIONS else connection)


def expect_async(connection: object, otherwise: str) -> str:
    """The name of its class. WrongConnection if `aborrow` would refuse it."""
    return _known(connection, _ASYNC, _SYNC, f"is not async: {otherwise}")


def _known(connection: object, taken: Container[str], others: Container[str], otherwise: str) -> str:
    """The name under which the class of a connection, or one of its bases, is taken."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__]
    for name in names:
        if name in taken:
            return name
        if name in others:
            raise WrongConnection(f"connection is of type {names[0]}, which {otherwise}")
    raise WrongConnection(
        f"connection is of type {names[0]}: it must be a connection of psycopg or asyncpg, a connection or session of "
        f"SQLAlchemy, or Django's connection"
    )


def run_all(borrowed: Borrowed, statements: Sequence[Statement[T]]) -> list[T]:
    """Run all of the statements, or none of them, in the caller's transaction."""
    return carry_out(_running(borrowed, statements), lambda answer: answer)


async def arun_all(borrowed: Borrowed, statements: Sequence[Statement[T]]) -> list[T]:
    """The async twin of `run_all`."""
    return await acarry_out(_running(borrowed, statements), lambda asked: asked)


def _running(borrowed: Borrowed, statements: Sequence[Statement[T]]) -> Steps[list[T]]:
    results: list[Sequence[Row]] = []
    with translated_errors():
        alone = len(statements) > 1 and borrowed.commits_each()
        try:
            for text, values in _sent(statements, alone, numbered=borrowed.numbered):
                results.append((yield from borrowed.execute(text, values)))
        except BaseException:
            if alone:
                with suppress(Exception):  # A connection that is broken has rolled back. The first error says why.
                    yield from borrowed.execute("rollback", ())
            raise
    decoded = zip(statements, results[1:-1] if alone else results, strict=True)
    return [one.decode([tuple(map(_plain, row)) for row in rows]) for one, rows in decoded]


def _sent(statements: Sequence[Statement[Any]], alone: bool, *, numbered: bool) -> Iterator[tuple[str, Values]]:
    """The texts and values to send. Statements that would commit one by one need a transaction."""
    if alone:
        yield "begin", ()
    for one in statements:
        text, order = _casting(one.text, numbered)
        values = [None if value is None else _as_text(value) for value in one.parameters]
        yield text, values if numbered else [values[n] for n in order]
    if alone:
        yield "commit", ()


@functools.cache
def _casting(text: bytes, numbered: bool) -> tuple[str, list[int]]:
    """The text with a cast from text for each parameter, and for %s the parameters in the order of their places."""
    plain = text.decode()
    if numbered:
        return _PARAMETER.sub(r"$\1::text::", plain), []
    order = [int(number) - 1 for number in _PARAMETER.findall(plain)]
    return _PARAMETER.sub("%s::text::", plain.replace("%", "%%")), order


def _as_text(value: object) -> str:
    match value:
        case bytes():  # JSON.
            return value.decode()
        case list():
            return f"{{{','.join('null' if one is None else _quoted(_as_text(one)) for one in value)}}}"
        case datetime():
            return value.isoformat()
        case _:
            return str(value)  # A text, a number, a boolean or a UUID.


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plain(value: object) -> object:
    """A value of a row: a number, a time, a list, a state or a uuid, which some libraries give as text."""
    if value is None or isinstance(value, int | float | UUID | datetime | list):
        return value
    text = str(value)
    return UUID(text) if _UUID.fullmatch(text) else text or None  # Empty: a function that returns void.


# Errors


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn errors about the job into ours. The others concern the caller's transaction, and stay as they are.

    The caller may want to repeat it, for example after a serialisation failure.
    """
    try:
        yield
    except Exception as error:  # Each library has its own classes.
        found = next((ours for cause in _causes(error) if (ours := _translated(cause))), None)
        if found is None:
            raise
        raise found from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and the errors of the driver that it wraps."""
    while error is not None:
        yield error
        error = getattr(error, "orig", None) or error.__cause__


def _translated(error: BaseException) -> errors.OutliveError | None:
    """Our error for one of a driver. The drivers agree on few names."""
    diag = getattr(error, "diag", None)
    text = getattr(diag, "message_primary", None) or getattr(error, "message", None)
    detail = getattr(diag, "message_detail", None) or getattr(error, "detail", None)
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return errors.of_sqlstate(code, text, detail) if code and text else None
