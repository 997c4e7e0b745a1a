"""Brings a database to the schema of this version: installs it, or upgrades it step by step, in one transaction.

`schema/` holds the current schema. `upgrades/NNNN.sql` upgrades the tables from version NNNN - 1. Functions and views
are replaced as a whole each time. An advisory lock lets one process migrate at a time; the next finds nothing to do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from outlive import db, sql
from outlive.config import Config, load
from outlive.errors import ConfigError, SchemaMismatch
from outlive.logs import redacted

VERSION = int(sql.read("schema/version.sql").split("values (")[1].split(")")[0])
_FUNCTIONS = (
    "verdict",
    "results",
    "following",
    "batches",
    "keys",
    "completion",
    "losses",
    "claims",
    "enqueue",
    "operators",
    "audit",
    "finding",
    "dependencies",
    "sources",
    "schedules",
    "counts",
    "output",
    "protocol",
)
_LOCK = 0x6F75746C697665  # "outlive"


def script(current: int = 0) -> str:
    """The SQL that brings a database from a version (0: no schema) to this one."""
    if current == VERSION:
        return ""
    tables = [sql.read("schema/tables.sql")] if current == 0 else _upgrades(current)
    return "\n".join(
        [
            *tables,
            sql.read("schema/drop_views.sql"),
            *(sql.read(f"schema/functions/{theme}.sql") for theme in _FUNCTIONS),
            sql.read("schema/views.sql"),
            sql.functions(),
            sql.read("schema/version.sql"),
        ]
    )


def _upgrades(current: int) -> list[str]:
    return [sql.read(f"upgrades/{version:04}.sql") for version in range(current + 1, VERSION + 1)]


def version(connection: db.Connection) -> int:
    """The version of the database's schema; 0 if it has no schema."""
    found = connection.execute("select to_regclass('outlive.schema_version') is not null").fetchone()
    if found != (True,):
        return 0
    row = connection.execute("select max(version) from outlive.schema_version").fetchone()
    return (row and row[0]) or 0


def check(connection: db.Connection, url: str | None = None) -> None:
    """SchemaMismatch unless the database, which is the one at the URL, has the schema of this version."""
    have = version(connection)
    if have == 0:
        raise SchemaMismatch(f"the database has no outlive schema yet: run `{_command(url)}`")
    if have < VERSION:
        raise SchemaMismatch(
            f"the database has schema version {have}, but this outlive needs {VERSION}: run `{_command(url)}`"
        )
    if have > VERSION:
        raise SchemaMismatch(
            f"the database has schema version {have}, newer than the {VERSION} of this outlive: upgrade outlive here"
        )


def _command(url: str | None) -> str:
    """The command that migrates this database. Without an option, it takes that of file and environment."""
    here = url is None or url == load().database_url
    return "outlive migrate" if here else f"outlive migrate --database-url {shlex.quote(redacted(url or ''))}"


def check_encoding(connection: db.Connection) -> None:
    """SchemaMismatch unless the database can store every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"the database has the encoding {encoding}, which can't store every text of a job: make a database with "
            f"`create database … encoding 'UTF8' template template0`"
        )


def migrate(connection: db.Connection, *, roles: bool = False) -> tuple[int, int]:
    """Bring the schema up to date, and create the roles if asked. Returns the version before and after."""
    check_encoding(connection)
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        before = version(connection)
        if before > VERSION:
            check(connection)
        if 0 < before < VERSION:
            _refuse_while_workers_run(connection, before)
        if text := script(before):
            connection.execute(text.encode())
        if roles:
            connection.execute(sql.read("schema/roles.sql").encode())
        if roles or (before < VERSION and _has_roles(connection)):
            connection.execute(sql.read("schema/grants.sql").encode())
    return before, VERSION


def _refuse_while_workers_run(connection: db.Connection, before: int) -> None:
    """Workers of an earlier version can't work with this schema: they would run jobs whose ends can't be written."""
    running = connection.execute(
        "select format('%s on %s', name, hostname) from outlive.workers "
        "where state in ('active', 'stale', 'draining') and last_seen > now() - interval '1 minute' order by 1"
    ).fetchall()
    if running:
        raise SchemaMismatch(
            f"workers run that need schema version {before}: {', '.join(name for (name,) in running)}. Stop them, "
            "their jobs go back to the queue. Then run `outlive migrate` again. A worker that was killed counts as "
            "running for a minute"
        )


def address(config: Config) -> str:
    """The address of the database: the configured one, or the embedded server's."""
    try:
        conninfo_to_dict(config.database_url or "")
    except psycopg.ProgrammingError as error:  # Its message may quote the address with the password.
        unknown = re.search(r'invalid (?:URI query parameter:|connection option) "(\w+)"', str(error))
        if unknown and not re.search(r"\?.*@", config.database_url or ""):
            hint = "write sslmode" if unknown[1] == "ssl" else "leave it out"
            raise ConfigError(f"database_url has a parameter that libpq does not know ({unknown[0]}): {hint}") from None
        if driver := re.match(r"postgres(?:ql)?(\+\w+):", config.database_url or ""):
            raise ConfigError(
                f"database_url is an address for SQLAlchemy: leave out {driver[1]}, as in postgresql://user@host/name"
            ) from None
        raise ConfigError(
            "database_url is not a Postgres address: write it like postgresql://user@host:5432/name, "
            "and escape special characters, a space as %20"
        ) from None
    if config.database_url:
        return config.database_url
    from outlive import embedded  # Not at the top: few commands start a server.

    return embedded.fall_back(config.home)


def expect_agreement(config: Config, app: Mapping[str, object]) -> None:
    """ConfigError if the app names one database in code, and the file, the environment or a flag another one.

    `config` are all settings together, so its database is the app's if the others name none.
    """
    own = app.get("database_url")
    if own is None:
        return
    used = address(config)
    ours, named = _place(used), _place(address(Config(database_url=str(own))))
    if ours != named:
        raise ConfigError(
            f"the app names the database {_shown(named)} in its code (App(database_url=…)), but the file, the "
            f"environment or a flag names {_shown(ours)}: jobs would wait where no worker looks; remove one of the two"
        )


def _place(url: str) -> dict[str, str]:
    """The database of an address, without the credentials."""
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in pq.Conninfo.get_defaults()}
    parts = {**defaults, **{key: str(value) for key, value in conninfo_to_dict(url).items()}}
    name = parts.get("dbname") or parts.get("user", "")  # As libpq does it.
    return {"host": parts.get("host", ""), "port": parts.get("port", ""), "dbname": name}


def _shown(place: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in place.items() if value)


def ready(config: Config) -> str:
    """The address of the database, once its schema is right.

    Errors of the driver are not translated: the client retries after some of them.
    """
    found = address(config)
    with db.connect(found) as connection:
        make_ready(connection, config)
    return found


def make_ready(connection: db.Connection, config: Config) -> None:
    """Check the schema. The embedded server, which has no operator, is migrated instead."""
    if config.database_url is None:
        migrate(connection)
    else:
        check(connection, config.database_url)


def _has_roles(connection: db.Connection) -> bool:
    """Whether the roles own this database. They belong to the server: another database may have created them."""
    query = "select from pg_namespace where nspname = 'outlive' and nspowner = to_regrole('outlive_owner')"
    return connection.execute(query).fetchone() is not None
