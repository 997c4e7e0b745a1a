"""The two databases that a bench measures in: one that is free, and beside it one that carries the load.

They are made for it and dropped after it, on a durable server of its own or on the one that is named.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outlive import db, embedded, migrate
from outlive.errors import ConfigError
from outlive.lab.bench.stock import Stock

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",  # As on a server that has run for a while: the log is written into files that are there.
}
RECORDED = (*SETTINGS, "autovacuum_naptime", "data_checksums", "wal_sync_method")
STOP_S = 60.0


@dataclass(slots=True)
class Database:
    """One database with the schema in it, and what it holds just now."""

    url: str
    connection: db.Connection
    content: str = ""

    def hold(
        self, content: str, stocks: Sequence[Stock], *, prepare: Callable[[db.Connection], None] | None = None
    ) -> None:
        """Have it hold just that, vacuumed and flushed; nothing is done if it does already."""
        if self.content == content:
            return
        self.content = ""
        self.connection.execute(
            "truncate outlive.jobs, outlive.waiting, outlive.running, outlive.held, outlive.attempts, "
            "outlive.dedupe_keys, outlive.sources"
        )
        if prepare:
            prepare(self.connection)
        for stock in stocks:
            stock.put(self.connection)
        self.settle()
        self.content = content

    def settle(self) -> None:
        """Leave no old work to be done while something is timed. Waiting and running are never analyzed."""
        self.connection.execute("vacuum (analyze) outlive.jobs, outlive.attempts")
        self.connection.execute("checkpoint")


@dataclass(frozen=True, slots=True)
class Databases:
    free: Database
    loaded: Database

    def version(self) -> str:
        row = self.free.connection.execute("show server_version").fetchone()
        return str(row[0]) if row else ""

    def settings(self) -> dict[str, str]:
        rows = self.free.connection.execute(
            "select name, current_setting(name) from pg_settings where name = any(%s)", [list(RECORDED)]
        )
        return {str(name): str(value) for name, value in rows}


@contextmanager
def databases(url: str | None) -> Iterator[Databases]:
    """Made on the server of that url, or on an embedded one in a directory that goes with it."""
    if url is not None:
        _refuse_occupied(url)
        with _made_on(url) as made:
            yield made
        return
    # Not the usual temporary directory, which may live in memory: then fsync would cost nothing.
    home = Path(tempfile.mkdtemp(prefix="outlive-bench-", dir="/var/tmp" if Path("/var/tmp").is_dir() else None))
    home.chmod(0o755)  # As root the server runs as somebody else, who must pass here.
    server = home / "server"
    try:
        with _made_on(embedded.ensure(server, settings=SETTINGS)) as made:
            yield made
    finally:
        embedded.release(server, wait_s=STOP_S)
        shutil.rmtree(home, ignore_errors=True)


def _refuse_occupied(url: str) -> None:
    with db.translated_errors(), db.connect(url) as connection:
        if (
            migrate.version(connection)
            and connection.execute("select from outlive.jobs limit 1").fetchone() is not None
        ):
            raise ConfigError(
                f"the database {connection.info.dbname} holds jobs: a bench would stand in the way of their workers; "
                "name one on a server that is free"
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
            raise ConfigError(f"a bench makes databases of its own, and this user may not: {error}") from error
        finally:
            for name in names:
                admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _open(url: str) -> Database:
    connection = db.connect(url)
    migrate.migrate(connection)
    return Database(url, connection)
