"""The two databases of a bench: a free one, and a loaded one that carries a backlog or a worker's jobs.

They are made on a durable server that goes away, or on the one that is named, and dropped afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outlive import db, migrate
from outlive.errors import ConfigError
from outlive.lab.bench.stock import Stock
from outlive.lab.server import temporary_home, temporary_server

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
        self.connection.execute(
            "truncate outlive.jobs, outlive.waiting, outlive.running, outlive.held, outlive.attempts, "
            "outlive.dedupe_keys, outlive.sources"
        )
        self.add(stocks)
        self.content = content

    def add(self, stocks: Sequence[Stock]) -> None:
        for stock in stocks:
            stock.put(self.connection)
        self.vacuum()

    def vacuum(self) -> None:
        """Leave no old work to the timed part. `waiting` and `running` are never analyzed."""
        self.connection.execute("vacuum (analyze) outlive.jobs, outlive.attempts")
        self.connection.execute("checkpoint")


@dataclass(frozen=True, slots=True)
class Databases:
    free: Database
    loaded: Database

    def version(self) -> str:
        [(version,)] = self.free.connection.execute("show server_version").fetchall()
        return str(version)

    def settings(self) -> dict[str, str]:
        query = "select name, current_setting(name) from pg_settings where name = any(%s)"
        return {str(name): str(value) for name, value in self.free.connection.execute(query, [list(RECORDED)])}


@contextmanager
def databases(url: str | None) -> Iterator[Databases]:
    """Make the databases on the server of this address, or on a temporary one."""
    if url is not None:
        _refuse_occupied(url)
        with _made_on(url) as made:
            yield made
    else:
        with temporary_home("bench") as home, temporary_server(home, SETTINGS) as server, _made_on(server) as made:
            yield made


def _refuse_occupied(url: str) -> None:
    with db.translated_errors(), db.connect(url) as connection:
        if migrate.version(connection) and connection.execute("select 1 from outlive.jobs limit 1").fetchone():
            raise ConfigError(
                f"the database {connection.info.dbname} holds jobs: a bench would slow their workers down; "
                "name a database on a server that has no jobs"
            )


@contextmanager
def _made_on(url: str) -> Iterator[Databases]:
    names = [f"outlive_bench_{what}_{uuid4().hex[:8]}" for what in ("free", "loaded")]
    with db.translated_errors(), db.connect(url) as admin:
        try:
            for name in names:
                admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            free, loaded = (_open(make_conninfo(url, dbname=name)) for name in names)
            with free.connection, loaded.connection:
                yield Databases(free, loaded)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(f"a bench creates databases, and this user is not allowed to: {error}") from error
        finally:
            for name in names:
                admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _open(url: str) -> Database:
    connection = db.connect(url)
    migrate.migrate(connection)
    return Database(url, connection)
