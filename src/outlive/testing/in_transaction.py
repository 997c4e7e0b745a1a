"""The transaction of Django that a TestCase rolls back. Jobs in it are seen on Django's own session only, so they are
run and read there: a second connection object of ours, with our own decoding, on the session that Django has opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import pq

from outlive import db
from outlive.binary import read_json_raw

_FAILED = pq.TransactionStatus.INERROR


class Joined(db.Connection):
    def __del__(self, *_: object) -> None:
        """The session is Django's, and stays open."""


def is_of_test(connection: Any) -> bool:
    """Whether Django rolls back after the test what this connection does."""
    return any(getattr(block, "_from_testcase", False) for block in getattr(connection, "atomic_blocks", ()))


def is_as_committed(connection: Any) -> bool:
    """Whether the test itself has no transaction open: beside the one that is rolled back, nothing is held back."""
    blocks = getattr(connection, "atomic_blocks", None)
    return blocks is not None and all(getattr(block, "_from_testcase", False) for block in blocks)


def joined(connection: Any) -> Joined | None:
    """A connection of ours on the session of Django; None: its driver is not psycopg 3."""
    connection.ensure_connection()
    session = getattr(connection.connection, "pgconn", None)
    if session is None:
        return None
    ours = Joined(session)
    read_json_raw(ours)
    return ours


@contextmanager
def usable_afterwards(connection: db.Connection) -> Iterator[None]:
    """Keep an error of a statement in this block from ending the transaction of the test."""
    if not isinstance(connection, Joined):
        yield
        return
    connection.execute(b"savepoint outlive_job")
    try:
        yield
    finally:
        if connection.pgconn.transaction_status == _FAILED:
            connection.execute(b"rollback to savepoint outlive_job")
        connection.execute(b"release savepoint outlive_job")
