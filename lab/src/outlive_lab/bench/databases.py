"""The two databases of a bench: a free one, and a loaded one that carries a backlog or a worker's jobs.

They are made on a durable server that goes away, or on the one that is named, and dropped afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outlive import db, migrate
from outlive.errors import ConfigError
from outlive.temporary.server import temporary_home, temporary_server
from outlive_lab import environment
from outlive_lab.bench.stock import Stock

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",  # As on a server that has run for a while, the log is written into existing files.
}
RECORDED = (*SETTINGS, "autovacuum_naptime", "data_checksums", "wal_sync_method")


@dataclass(slots=True)
class Database:
    """A database with the schema, and the name of its content."""

    url: str
    connection: db.Connection
    content: str = ""

    def hold(self, content: str, stocks: Sequence[Stock]) -> None:
        """Make the stocks the only content. Nothing is done if the content has this name already."""
        if self.content == content:
            return
        self.content = ""
        while not self._emptied():
            pass
        self.add(stocks)
        self.content = content

    def _emptied(self) -> bool:
        """Empty all tables; False if a statement of a worker, which locks them in another order, was in the way."""
        try:
            self.connection.execute(
                "truncate outlive.jobs, outlive.waiting, outlive.running, outlive.held, outlive.attempts, "
                "outlive.dedupe_keys, outlive.sources, outlive.steps, outlive.keyed_jobs, outlive.key_turns"
            )
        except psycopg.errors.DeadlockDetected:
            return False
        return True

    def add(self, stocks: Sequence[Stock]) -> None:
        for stock in stocks:
            stock.put(self.connection)
        self.vacuum()

    def vacuum(self) -> None:
        """Leave no old work to the timed part. `waiting` and `running` are never analyzed."""
        self.connection.execute("vacuum (analyze) outlive.jobs, outlive.attempts")
        self.connection.execute("checkpoint")


def described(connection: db.Connection) -> dict[str, object]:
    """The machine, the software, and the settings of the server."""
    [(version,)] = connection.execute("show server_version").fetchall()
    query = "select name, current_setting(name) from pg_settings where name = any(%s)"
    settings = {str(name): str(value) for name, value in connection.execute(query, [list(RECORDED)])}
    return {"settings": settings, **environment.describe(str(version))}


@contextmanager
def databases(url: str | None) -> Iterator[tuple[Database, Database]]:
    """Make a free and a loaded database on the server of this address, or on a temporary one."""
    with (
        server(url) as (admin, place),
        _migrated(admin, place, "free") as free,
        _migrated(admin, place, "loaded") as loaded,
    ):
        yield free, loaded


@contextmanager
def server(url: str | None) -> Iterator[tuple[db.Connection, str]]:
    """A connection to the server of this address, or to a temporary one, and its address."""
    with db.translated_errors(), ExitStack() as stack:
        if url is None:
            url = stack.enter_context(temporary_server(stack.enter_context(temporary_home("bench")), SETTINGS))
        admin = stack.enter_context(db.connect(url))
        if migrate.version(admin) and admin.execute("select 1 from outlive.jobs limit 1").fetchone():
            raise ConfigError(
                f"the database {admin.info.dbname} holds jobs: a bench would slow their workers down; "
                "name a database on a server that has no jobs"
            )
        yield admin, url


@contextmanager
def _migrated(admin: db.Connection, url: str, what: str) -> Iterator[Database]:
    with database(admin, url, what) as place, db.connect(place) as connection:
        migrate.migrate(connection)
        yield Database(place, connection)


@contextmanager
def database(admin: db.Connection, url: str, what: str) -> Iterator[str]:
    """The address of an empty database that is dropped afterwards."""
    name = f"outlive_bench_{os.getpid()}_{what}_{uuid4().hex[:8]}"
    try:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"a bench creates databases, and this user is not allowed to: {error}") from error
    try:
        yield make_conninfo(url, dbname=name)
    finally:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
