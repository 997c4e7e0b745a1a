"""Databases on the server of the test run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from outlive import db

TEMPLATE = "outlive_template"
"""A database with the schema of this version and nothing in it."""


@contextmanager
def new_database(server_url: str, *, template: str = TEMPLATE, options: str = "") -> Iterator[str]:
    """Make a database from a template, give its address, and drop it when the block ends."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template} {options}".encode())
    try:
        yield make_conninfo(server_url, dbname=name)
    finally:
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)".encode())


@contextmanager
def worker_connections(url: str) -> Iterator[Callable[[], db.Connection]]:
    """Give a function that opens connections with the plans of workers, and close them when the block ends."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(db.connect(url, db.PINNED)))


def end_sessions(admin: psycopg.Connection[Any], *, keep: psycopg.Connection[Any] | None = None) -> None:
    """End the sessions that outlive has on the database of `admin`, except one that the test still needs."""
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and application_name = 'outlive' and pid <> all(%s)",
        [[admin.info.backend_pid, *([keep.info.backend_pid] if keep else [])]],
    )
