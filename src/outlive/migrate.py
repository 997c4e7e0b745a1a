"""Brings a database to the schema of this version: installs it, or upgrades it step by step, in one transaction.

`schema/` holds the current schema. `upgrades/NNNN.sql` changes the tables of version NNNN - 1; missing tables and
indexes are made afterwards. Functions and views are replaced as a whole each time. An advisory lock lets one process
migrate at a time; the next finds nothing to do.

An upgrade locks all tables before it changes one. Clients wait behind a lock that is being waited for, so an upgrade
that can't have all of them soon gives them up, and tries again later.

A schema says which earlier version it serves. Workers and clients of that version go on, and may start: an upgrade to
it only adds, and a later version takes away what none of them needs any more.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping
from time import monotonic, sleep
from urllib.parse import quote, urlencode

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from outlive import db, program, search_path, sql, store
from outlive.config import Config, load
from outlive.errors import ConfigError, DatabaseBusy, SchemaMismatch

VERSION, SERVES = map(int, re.findall(r"values \((\d+), (\d+)\)", sql.read("schema/version.sql"))[0])
"""The version of the schema, and the earliest one whose workers and clients can work with it."""
_FUNCTIONS = (
    *("verdict", "results", "after_ends", "batches", "keys", "completion", "losses", "claims", "dedupe", "enqueue"),
    *("operators", "waits", "steps", "audit", "finding", "dependencies", "late_releases", "expiring", "sources"),
    *("schedules", "counts", "output", "watchers", "protocol", "protocol_steps"),
)
_LOCK = 0x6F75746C697665  # "outlive"
_LOCK_WAIT_S = 0.5
"""How long clients may wait behind an upgrade that waits for a lock: not so long that the server finds deadlocks."""
_PAUSES_S = (1, 2, 4, 8)
_GIVE_UP_S = 600

_ASK = {name: text.encode() for name, text in sql.load("migrating.sql").items()}
_log = logging.getLogger("outlive.migrate")


def script(current: int = 0) -> str:
    """The SQL that brings a database from a version (0: no schema) to this one."""
    if current == VERSION:
        return ""
    upgrades = range(current + 1, VERSION + 1) if current else ()
    return "\n".join(
        [
            *(sql.read(f"upgrades/{number:04}.sql") for number in upgrades),
            sql.read("schema/tables.sql"),
            sql.read("schema/drop_views.sql"),
            *(sql.read(f"schema/functions/{theme}.sql") for theme in _FUNCTIONS),
            sql.read("schema/views.sql"),
            sql.functions(),
            sql.read("schema/pins.sql"),
            sql.read("schema/version.sql"),
        ]
    )


def version(connection: db.Connection) -> int:
    """The version of the database's schema, as this code may use it: a newer one that serves it counts as its own.

    0: the database has no schema.
    """
    found = connection.execute("select to_regclass('outlive.schema_version') is not null").fetchone()
    return (db.run(connection, store.schema_version(VERSION)) or 0) if found == (True,) else 0


def installed(connection: db.Connection) -> str:
    """The version of the database's schema, which `check` has found to be good, and what it serves."""
    newest, *_ = connection.execute("select max(version) from outlive.schema_version").fetchone() or (VERSION,)
    return f"{newest}" if newest == VERSION else f"{newest}, which serves version {VERSION} of this outlive"


def check(connection: db.Connection, url: str | None = None) -> None:
    """SchemaMismatch unless the database, which is the one at the URL, has the schema of this version."""
    have = version(connection)
    found = f"the database has schema version {have}"
    if have > VERSION:
        raise SchemaMismatch(f"{found}, newer than the {VERSION} of this outlive: upgrade outlive here")
    if have < VERSION:
        option = ""  # The command takes the database of file and environment.
        if url is not None and url != load().database_url:
            option = f" --database-url {shlex.quote(_without_passwords(url))}"
        lacks = f"{found}, but this outlive needs {VERSION}" if have else "the database has no outlive schema yet"
        raise SchemaMismatch(lacks, cure=program.migrate(option=option))


def _without_passwords(url: str) -> str:
    """The address without what libpq marks as a password. It is one word, as the program that shows it expects."""
    passwords = {option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.dispchar == b"*"}
    parts = conninfo_to_dict(url)
    shown = {key: value for key, value in parts.items() if key not in passwords}
    return url if shown == parts else f"postgresql://?{urlencode(shown, safe='/:', quote_via=quote)}"


def check_encoding(connection: db.Connection) -> None:
    """SchemaMismatch unless the database can store every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"the database has the encoding {encoding}, which can't store every text of a job: make a database with "
            f"`create database … encoding 'UTF8' template template0`"
        )


class _InUse(Exception):
    """Another transaction uses a table."""


def migrate(connection: db.Connection, *, roles: bool = False) -> tuple[int, int]:
    """Bring the schema up to date, and create the roles if asked. Returns the version before and after."""
    check_encoding(connection)
    began = monotonic()
    pauses_s = iter(_PAUSES_S)
    while True:
        try:
            return _migrate(connection, roles=roles)
        except _InUse:
            user = connection.execute(_ASK["longest_user"]).fetchone()
            by = str(user[0]) if user else "a transaction that has ended meanwhile"
        if monotonic() - began > _GIVE_UP_S:
            raise DatabaseBusy(
                f"the schema was not upgraded: its tables are in use for more than {_GIVE_UP_S // 60} minutes, now by "
                f"{by}. End that session, for example with pg_terminate_backend, and run `{program.migrate()}` again"
            )
        pause_s = next(pauses_s, _PAUSES_S[-1])
        _log.warning("the upgrade waits for tables that are in use by %s: it tries again in %d s", by, pause_s)
        sleep(pause_s)


def _migrate(connection: db.Connection, *, roles: bool) -> tuple[int, int]:
    with connection.transaction():
        connection.execute(search_path.PIN)  # What views and functions mean is decided when they are made.
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        before = version(connection)
        if before > VERSION:
            check(connection)
        if 0 < before < VERSION:
            if before < SERVES:
                _refuse_while_workers_run(connection, before)
            _lock_tables(connection)
            if before < SERVES:  # One may have started until the tables were locked.
                _refuse_while_workers_run(connection, before)
        if text := script(before):
            connection.execute(text.encode())
        if roles or (before < VERSION and connection.execute(_ASK["has_roles"]).fetchone() is not None):
            try:  # A later version may have more roles than the one that made the others.
                connection.execute(sql.read("schema/roles.sql").encode())
            except psycopg.errors.InsufficientPrivilege:
                raise SchemaMismatch(
                    "this version has roles that the server lacks, and you may not create them: run "
                    f"`{program.migrate()}` as a superuser or a role with CREATEROLE. Nothing was changed"
                ) from None
            connection.execute(sql.read("schema/grants.sql").encode())
    return before, VERSION


def _lock_tables(connection: db.Connection) -> None:
    """Drop all views and lock all tables, in the order in which readers and an enqueue lock them, so that none of them
    waits for the other. (To lock a view is to lock the catalogs that it reads, which is not allowed.)"""
    relations = connection.execute(_ASK["relations"]).fetchone()
    assert relations
    wait_ms = round(_LOCK_WAIT_S * 1000)
    connection.execute(f"set local lock_timeout = 0; set local statement_timeout = {wait_ms}".encode())
    try:
        connection.execute(sql.read("schema/drop_views.sql").encode())
        connection.execute(f"lock table {relations[0]} in access exclusive mode".encode())
    except (psycopg.errors.QueryCanceled, psycopg.errors.DeadlockDetected) as error:
        raise _InUse from error
    connection.execute("set local statement_timeout = 0")


def _refuse_while_workers_run(connection: db.Connection, before: int) -> None:
    """Workers of an earlier version can't work with this schema: they would run jobs whose ends can't be written."""
    if running := connection.execute(_ASK["running_workers"]).fetchall():
        raise SchemaMismatch(
            f"workers run that need schema version {before}: {', '.join(name for (name,) in running)}. Stop them, "
            f"their jobs go back to the queue. Then run `{program.migrate()}` again. A worker that was killed counts "
            "as running for a minute, and until its last lease ends"
        )


def address(config: Config) -> str:
    """The address of the database: the configured one, or the embedded server's."""
    try:
        parts = conninfo_to_dict(config.database_url or "")
    except psycopg.ProgrammingError as error:  # Its message may quote the address with the password.
        unknown = re.search(r'invalid (?:URI query parameter:|connection option) "(\w+)"', str(error))
        # What libpq takes for a parameter may be the end of a password with a space or an & in it.
        if unknown and not re.search(r"\?.*@|password\s*=", config.database_url or "", re.IGNORECASE):
            hint = "write sslmode" if unknown[1] == "ssl" else "leave it out"
            raise ConfigError(f"database_url has a parameter that libpq does not know ({unknown[0]}): {hint}") from None
        if driver := re.match(r"postgres(?:ql)?(\+\w+):", config.database_url or ""):
            raise ConfigError(
                f"database_url is an address for SQLAlchemy: leave out {driver[1]}, as in postgresql://user@host/name"
            ) from None
        raise ConfigError(_MALFORMED) from None
    if (url := config.database_url) and _has_unescaped(url, parts):
        raise ConfigError(_MALFORMED) from None
    if url and not url.startswith("postgresql:///postgres?host="):  # As the embedded server's does.
        return url
    from outlive import embedded  # Not at the top: few commands start a server.

    if url:
        embedded.join(url, config.home)
        return url
    return embedded.fall_back(config.home)


_MALFORMED = (
    "database_url is not a Postgres address: write it like postgresql://user@host:5432/name, "
    "and escape special characters, a space as %20, an @ as %40, a / as %2F"
)


def _has_unescaped(url: str, parts: Mapping[str, object]) -> bool:
    """Whether the password has an @ or a / that is not escaped. libpq takes what follows for the host, the port or the
    name of the database, which errors and logs show."""
    before_host = url.partition("://")[2].partition("?")[0].rpartition("@")[0]
    host, port = (str(parts.get(name) or "") for name in ("host", "port"))
    return "@" in host or bool(re.search("[@/]", before_host)) or not re.fullmatch(r"[\d, ]*", port)


def expect_agreement(config: Config, app: Mapping[str, object]) -> None:
    """ConfigError if the app names one database in code, and the file, the environment or a flag another one.

    `config` are all settings together, so its database is the app's if the others name none.
    """
    if (own := app.get("database_url")) is None:
        return
    used, named = place(address(config)), place(address(Config(database_url=str(own))))
    if used != named:
        raise ConfigError(
            f"the app names the database {named} in its code (App(database_url=…)), but the file, the "
            f"environment or a flag names {used}: jobs would wait where no worker looks; remove one of the two"
        )


def place(url: str) -> str:
    """The database of an address, without the credentials."""
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in pq.Conninfo.get_defaults()}
    parts = {**defaults, **{key: str(value) for key, value in conninfo_to_dict(url).items()}}
    parts["dbname"] = parts.get("dbname") or parts.get("user", "")  # As libpq does it.
    return " ".join(f"{key}={parts[key]}" for key in ("host", "port", "dbname") if parts.get(key))


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
