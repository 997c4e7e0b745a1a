"""Databases on the server of the test run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outlive import db
from tests.driving.making import Queue

TEMPLATE = "outlive_template"
"""A database with the schema of this version and nothing in it. Its clock can be set."""

SETTABLE_CLOCK = b"""
create or replace function outlive.now() returns timestamptz language sql stable parallel safe
return coalesce(nullif(current_setting('outlive.now', true), '')::timestamptz, statement_timestamp())
"""
"""With this clock a test stops the time of its session: set outlive.now = …"""


@contextmanager
def new_database(server_url: str, *, template: str = TEMPLATE, options: str = "") -> Iterator[str]:
    """Make a database from a template, give its address, and drop it when the block ends."""
    name = _make(server_url, template, options)
    try:
        yield make_conninfo(server_url, dbname=name)
    finally:
        _drop(server_url, name)


def _make(server_url: str, template: str = TEMPLATE, options: str = "") -> str:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template} {options}".encode())
    return name


def _drop(server_url: str, name: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)".encode())


# Making a database takes longer than most tests. So a test leaves its own, emptied, to the next one in its process.

_MAX_GROWTH_BYTES = 1 << 19
_LOOK = """
select md5(string_agg(o.o::text, ' ' order by o.o::text)), pg_database_size(current_database()) from (
  select row('class', c.oid, c.xmin::text) from pg_class c where c.oid >= 16384 and c.relpersistence <> 't'
  union all select row('attribute', a.attrelid, a.xmin::text) from pg_attribute a
    join pg_class c on c.oid = a.attrelid where c.oid >= 16384 and c.relpersistence <> 't'
  union all select row('procedure', p.oid, p.xmin::text) from pg_proc p where p.oid >= 16384
  union all select row('trigger', t.oid, t.xmin::text) from pg_trigger t
  union all select row('statistics', s.starelid, s.xmin::text) from pg_statistic s where s.starelid >= 16384
  union all select row('setting', r.setrole, r.xmin::text) from pg_db_role_setting r
    join pg_database d on d.oid = r.setdatabase where d.datname = current_database()
  union all select row('database', d.oid, d.xmin::text) from pg_database d where d.datname = current_database()
  union all select row('version', 0::oid, v.version::text) from outlive.schema_version v) o(o)
"""
_EMPTY = """
do $$ declare t regclass; begin
  for n in 1..50 loop  -- Sessions take a moment to end.
    exit when not exists (
      select from pg_stat_activity a
      where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend');
    assert n < 50, 'a session is left';
    perform pg_sleep(0.01), pg_stat_clear_snapshot();
  end loop;
  set local session_replication_role = replica;
  for t in select c.oid from pg_class c
    where c.relnamespace = 'outlive'::regnamespace and c.relkind = 'r' and c.relname <> 'schema_version'
  loop execute format('delete from %s', t); end loop;
  perform setval(s.seqrelid, s.seqstart, false) from pg_sequence s;
  perform pg_stat_reset();
end $$
"""
_left: list[tuple[str, tuple[Any, ...]]] = []
"""Databases, and how they looked when they were new: definitions, statistics, settings and size."""


@contextmanager
def reused_database(server_url: str) -> Iterator[str]:
    """Give the address of a database with the schema of this version and nothing in it."""
    name, as_new = _left.pop() if _left else (_make(server_url), None)
    url = make_conninfo(server_url, dbname=name)
    if as_new is None:
        with psycopg.connect(url) as fresh:
            as_new = _look(fresh)
    left = False
    try:
        yield url
        with suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as cleaner:
            cleaner.execute("set lock_timeout = '5s'")
            cleaner.execute(_EMPTY)
            look, size = _look(cleaner)
            left = look == as_new[0] and size - as_new[1] < _MAX_GROWTH_BYTES
    finally:
        if left:
            _left.append((name, as_new))
        else:
            _drop(server_url, name)


def _look(connection: psycopg.Connection[Any]) -> tuple[Any, ...]:
    (found,) = connection.execute(_LOOK).fetchall()
    return tuple(found)


@contextmanager
def worker_connections(url: str) -> Iterator[Callable[[], Queue]]:
    """Give a function that opens connections with the plans of workers, and close them when the block ends."""
    with ExitStack() as opened:

        def connect() -> Queue:
            connection = opened.enter_context(closing(Queue.at(url, db.PINNED)))
            connection.execute("reset search_path")  # Tests make tables and functions of their own.
            return connection

        yield connect


def end_sessions(admin: psycopg.Connection[Any], *, keep: psycopg.Connection[Any] | None = None) -> None:
    """End the sessions that outlive has on the database of `admin`, except one that the test still needs."""
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and application_name = 'outlive' and pid <> all(%s)",
        [[admin.info.backend_pid, *([keep.info.backend_pid] if keep else [])]],
    )


@contextmanager
def login(admin: psycopg.Connection[Any], role: str) -> Iterator[str]:
    """Make a login role that has this role and nothing else; gives its name."""
    name = f"test_{uuid4().hex}"
    admin.execute(sql.SQL("create role {} login in role {}").format(sql.Identifier(name), sql.Identifier(role)))
    yield name
    admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@contextmanager
def session(admin: Queue, url: str, role: str) -> Iterator[Queue]:
    """A connection of a login role that has this role and nothing else."""
    with login(admin, role) as name, Queue.at(make_conninfo(url, user=name), db.PINNED) as theirs:
        yield theirs
