"""A transaction of each library whose connections outlive takes, all with the same few methods.

Everything is written with `await`. A sync library never waits, so its coroutines run to their end without a loop: some
libraries refuse to work in a thread that has one.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import outlive
from outlive import store
from outlive.client import looking
from outlive.client.options import BoundJob, JobOptions
from outlive.client.task import Task

T = TypeVar("T")
_ALIAS = "default"


@dataclass
class Transaction:
    """A transaction that is open, or opens with its first statement."""

    connection: Any
    """What is given as `connection=`."""
    is_async: bool
    execute: Callable[[str], Awaitable[list[Any]]]
    """Run a statement of the caller's own."""
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]
    savepoint: Callable[[], AbstractAsyncContextManager[object]] = field(repr=False)
    """A block that rolls back to its beginning if it raises."""

    async def enqueue(self, task: Task[..., Any, Any], *args: Any, **options: Any) -> outlive.Job[Any]:
        here = task.using(**cast("JobOptions", {"connection": self.connection, **options}))
        return await here.aenqueue(*args) if self.is_async else here.enqueue(*args)

    async def enqueue_many(self, app: outlive.App, jobs: list[BoundJob[Any]]) -> list[outlive.Job[Any]]:
        if self.is_async:
            return await app.aenqueue_many(jobs, connection=self.connection)
        return app.enqueue_many(jobs, connection=self.connection)

    async def add_schedule(self, app: outlive.App, name: str, task: str, **options: Any) -> list[str]:
        """Make a schedule, and read in the same transaction which there are."""
        if self.is_async:
            await app.aadd_schedule(name, task, connection=self.connection, **options)
            rows = await app.runner.arun(store.schedule_infos(), self.connection)
        else:
            app.add_schedule(name, task, connection=self.connection, **options)
            rows = app.runner.run(store.schedule_infos(), self.connection)
        return [looking.schedule_info(row).name for row in rows]

    async def send(self, job: outlive.Job[Any], signal: str, value: object) -> None:
        if self.is_async:
            await job.asend(signal, value, connection=self.connection)
        else:
            job.send(signal, value, connection=self.connection)

    async def once(self, name: str) -> bool:
        """Whether an effect of the job that runs here is still to be made."""
        if self.is_async:
            return await outlive.current().aonce(self.connection, name)
        return outlive.current().once(self.connection, name)

    async def complete(self, result: object = None) -> None:
        """End the job that runs here."""
        if self.is_async:
            await outlive.current().acomplete(self.connection, result)
        else:
            outlive.current().complete(self.connection, result)


Opened = AbstractAsyncContextManager[Transaction]


def drive(coroutine: Coroutine[Any, Any, T], *, is_async: bool) -> T:
    """Run a coroutine to its end."""
    if is_async:
        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a sync library has waited")


def _awaitable(function: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    async def call(*args: Any) -> T:
        return function(*args)

    return call


def _block(make: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[object]]:
    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        with make():
            yield

    return block


LIBPQ = ("host", "port", "user", "password", "dbname")
ASYNCPG = ("host", "port", "user", "password", "database")


def parts(url: str, *names: str) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict

    found = conninfo_to_dict(url)
    return {
        name: found[name.replace("database", "dbname")] for name in names if name.replace("database", "dbname") in found
    }


@asynccontextmanager
async def psycopg_sync(url: str, *, autocommit: bool = False) -> AsyncIterator[Transaction]:
    import psycopg

    with psycopg.connect(url, autocommit=autocommit) as connection:
        yield Transaction(
            connection,
            is_async=False,
            execute=_awaitable(lambda text: _rows(connection.execute(text.encode()))),
            commit=_awaitable(connection.commit),
            rollback=_awaitable(connection.rollback),
            savepoint=_block(connection.transaction),
        )


def _rows(cursor: Any) -> list[Any]:
    return cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def psycopg_async(url: str, *, autocommit: bool = False) -> AsyncIterator[Transaction]:
    import psycopg

    async def execute(text: str) -> list[Any]:
        cursor = await connection.execute(text.encode())
        return await cursor.fetchall() if cursor.description else []

    async with await psycopg.AsyncConnection.connect(url, autocommit=autocommit) as connection:
        yield Transaction(
            connection, True, execute, connection.commit, connection.rollback, lambda: connection.transaction()
        )


@asynccontextmanager
async def asyncpg_connection(url: str, *, autocommit: bool = False) -> AsyncIterator[Transaction]:
    import asyncpg

    connection = await asyncpg.connect(**parts(url, *ASYNCPG))
    try:
        async with _asyncpg_transaction(connection, autocommit) as transaction:
            yield transaction
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str, *, autocommit: bool = False) -> AsyncIterator[Transaction]:
    """A connection that the pool has lent, whose uuids and JSON are read in the caller's own way."""
    import json

    import asyncpg

    async def set_up(connection: Any) -> None:
        for kind in ("json", "jsonb"):
            await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")

    async with (
        asyncpg.create_pool(**parts(url, *ASYNCPG), min_size=1, max_size=1, init=set_up) as pool,
        pool.acquire() as connection,
        _asyncpg_transaction(connection, autocommit) as transaction,
    ):
        yield transaction


@asynccontextmanager
async def _asyncpg_transaction(connection: Any, autocommit: bool) -> AsyncIterator[Transaction]:
    mine = connection.transaction()
    if not autocommit:
        await mine.start()
    yield Transaction(connection, True, connection.fetch, mine.commit, mine.rollback, connection.transaction)


@asynccontextmanager
async def sqlalchemy_connection(url: str, *, autocommit: bool = False) -> AsyncIterator[Transaction]:
    import sqlalchemy

    engine = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=parts(url, *LIBPQ))
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    with engine.connect().execution_options(**level) as connection:
        yield _sqlalchemy(connection, connection)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(
    url: str, *, autocommit: bool = False, driver: str = "psycopg"
) -> AsyncIterator[Transaction]:
    import sqlalchemy
    from sqlalchemy import orm

    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    engine = sqlalchemy.create_engine(f"postgresql+{driver}://", connect_args=parts(url, *LIBPQ), **level)
    session = orm.scoped_session(orm.sessionmaker(engine)) if driver == "psycopg2" else orm.Session(engine)
    yield _sqlalchemy(session, session)
    session.close()
    engine.dispose()


def _sqlalchemy(given: Any, connection: Any) -> Transaction:
    import sqlalchemy

    def execute(text: str) -> list[Any]:
        result = connection.execute(sqlalchemy.text(text))
        return [tuple(row) for row in result] if result.returns_rows else []

    return Transaction(
        given,
        is_async=False,
        execute=_awaitable(execute),
        commit=_awaitable(connection.commit),
        rollback=_awaitable(connection.rollback),
        savepoint=_block(connection.begin_nested),
    )


@asynccontextmanager
async def sqlalchemy_async(
    url: str, *, autocommit: bool = False, driver: str = "asyncpg", session: bool = True
) -> AsyncIterator[Transaction]:
    import sqlalchemy
    from sqlalchemy.ext import asyncio as sa

    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    given = parts(url, *(ASYNCPG if driver == "asyncpg" else LIBPQ))
    engine = sa.create_async_engine(f"postgresql+{driver}://", connect_args=given, **level)
    opened: Any = sa.AsyncSession(engine) if session else engine.connect()
    async with opened as connection:

        async def execute(text: str) -> list[Any]:
            result = await connection.execute(sqlalchemy.text(text))
            return [tuple(row) for row in result] if result.returns_rows else []

        yield Transaction(connection, True, execute, connection.commit, connection.rollback, connection.begin_nested)
    await engine.dispose()


@contextmanager
def django_at(url: str) -> Iterator[None]:
    """Let Django's default connection lead to this database."""
    import django
    from django.conf import settings
    from django.db import connection, connections

    given = {name.upper(): value for name, value in parts(url, "host", "port", "user", "password").items()}
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts(url, "dbname")["dbname"], **given}
    if not settings.configured:
        settings.configure(DATABASES={_ALIAS: database})
        django.setup()
    connections[_ALIAS].close()
    connections.databases[_ALIAS].update(database)
    del connections[_ALIAS]
    yield
    connection.close()


@asynccontextmanager
async def django_connection(url: str, *, autocommit: bool = False, wrapper: bool = False) -> AsyncIterator[Transaction]:
    from django.db import connection, connections, transaction

    def execute(text: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(text)
            return _rows(cursor)

    def end(*, undo: bool) -> None:
        transaction.set_rollback(undo)
        block.__exit__(None, None, None)

    with django_at(url):
        block = transaction.atomic()
        if not autocommit:
            block.__enter__()
        yield Transaction(
            connections[_ALIAS] if wrapper else connection,
            is_async=False,
            execute=_awaitable(execute),
            commit=_awaitable(functools.partial(end, undo=False)),
            rollback=_awaitable(functools.partial(end, undo=True)),
            savepoint=_block(transaction.atomic),
        )


Open = Callable[..., Opened]
LIBRARIES: dict[str, tuple[Open, bool]] = {
    "psycopg": (psycopg_sync, False),
    "async psycopg": (psycopg_async, True),
    "asyncpg": (asyncpg_connection, True),
    "asyncpg with a pool and codecs": (asyncpg_pool, True),
    "SQLAlchemy connection": (sqlalchemy_connection, False),
    "SQLAlchemy session": (sqlalchemy_session, False),
    "SQLAlchemy scoped session on psycopg2": (functools.partial(sqlalchemy_session, driver="psycopg2"), False),
    "SQLAlchemy async session": (sqlalchemy_async, True),
    "SQLAlchemy async session on psycopg": (functools.partial(sqlalchemy_async, driver="psycopg"), True),
    "SQLAlchemy async connection": (functools.partial(sqlalchemy_async, session=False), True),
    "Django": (django_connection, False),
    "Django by its alias": (functools.partial(django_connection, wrapper=True), False),
}
"""For each library, how a transaction of it is opened, and whether it is async."""
