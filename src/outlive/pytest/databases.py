"""Databases for tests: a server for the run, a template that has the schema, and a copy of it for each test.

The processes of pytest-xdist share the server and the template. A run holds an advisory lock while it lives, so the
next one knows which databases a killed run has left, and drops them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from uuid import uuid4

from psycopg import errors
from psycopg.conninfo import make_conninfo

from outlive import db, embedded, migrate

Setup = Callable[[str], object]
"""Prepares the database at an address, for example with tables of one's own."""
_LOCK = "outlive_template"
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
"""A test's database need not survive a crash of the machine."""
_URL = re.compile(r"(postgres(?:ql)?://[^/?]*)(?:/[^?]*)?(\?.*)?")


def embedded_url() -> str:
    """The embedded server for tests, beside the one for development. It stops after the last process that uses it."""
    home = embedded.default_directory()
    return embedded.ensure(home.with_name(f"{home.name}-tests"), settings=_FAST)


def with_name(url: str, name: str) -> str:
    """The address of another database on the same server. A URL stays one, because other libraries need a URL."""
    if found := _URL.fullmatch(url):
        return f"{found[1]}/{name}{found[2] or ''}"
    return make_conninfo(url, dbname=name)


class Databases:
    """Makes and drops databases on one server, over a connection that shows that this run is alive."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = db.connect(url)
        here = hashlib.sha256(self._admin.info.dbname.encode()).hexdigest()[:6]  # Such locks are the database's.
        self._family = f"outlive_test_{here}"
        self._run = f"{self._family}_{uuid4().hex[:12]}"
        self._numbers = count(1)
        self._lock(self._run)
        self._drop_left()
        self._templates: dict[Setup | None, str] = {None: self._with_schema()}
        """The template of each setup that tests have."""

    @contextmanager
    def new(self, setup: Setup | None = None) -> Iterator[str]:
        """A database that is dropped at the end of the block, with what the setup adds to the schema."""
        if setup is not None and setup not in self._templates:
            self._templates[setup] = self._prepared(setup)
        name = self._copy(self._templates[setup])
        try:
            yield with_name(self._url, name)
        finally:
            self._drop(name)

    def close(self) -> None:
        for name in self._named(self._run):
            self._drop(name)
        self._admin.close()

    def _with_schema(self) -> str:
        """The template of this version and this role, which later runs use again: only its owner may copy it."""
        made_of = f"{self._admin.info.user}\n{migrate.script()}"
        name = f"outlive_template_{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
        self._lock(_LOCK)
        try:
            if not self._named(name):
                made = f"{self._run}_template"
                self._admin.execute(f"create database {made} encoding 'UTF8' template template0".encode())
                with db.connect(with_name(self._url, made)) as connection:
                    migrate.migrate(connection)
                self._admin.execute(f"alter database {made} rename to {name}".encode())
        finally:
            self._unlock(_LOCK)
        return name

    def _prepared(self, setup: Setup) -> str:
        name = self._copy(self._templates[None])
        setup(with_name(self._url, name))
        self._end_own_sessions(name)  # A pool may have kept connections, and a template must have none.
        return name

    def _copy(self, template: str) -> str:
        name = f"{self._run}_{next(self._numbers)}"
        self._admin.execute(f"create database {name} template {template}".encode())
        return name

    def _drop(self, name: str) -> None:
        try:
            self._admin.execute(f"drop database if exists {name} with (force)".encode())
        except errors.InsufficientPrivilege:
            # Only a superuser's FORCE ends autovacuum. Without FORCE the server ends that itself, and waits for others.
            self._end_own_sessions(name)
            self._admin.execute(f"drop database if exists {name}".encode())

    def _end_own_sessions(self, name: str) -> None:
        self._admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and usename = current_user",
            [name],
        )

    def _drop_left(self) -> None:
        left = {name[: len(self._run)] for name in self._named(self._family)}
        for run in left - {self._run}:
            if self._try_lock(run):
                for name in self._named(run):
                    self._drop(name)
                self._unlock(run)

    def _named(self, start: str) -> list[str]:
        rows = self._admin.execute("select datname from pg_database where starts_with(datname, %s)", [start])
        return [name for (name,) in rows.fetchall()]

    def _lock(self, name: str) -> None:
        self._admin.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [name])

    def _try_lock(self, name: str) -> bool:
        return self._admin.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [name]).fetchone() == (True,)

    def _unlock(self, name: str) -> None:
        self._admin.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [name])
