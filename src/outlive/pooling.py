"""Whether each client has a session of the server for itself, as without a pooler, or with one in session mode."""

from __future__ import annotations

import functools

import psycopg

ROUNDS = 10
"""A busy pool may give a client the same session several times in a row, but not so often."""


@functools.cache
def keeps_sessions(conninfo: str) -> bool:
    """Two clients ask in turn in which session they are. In transaction mode they get each other's. This leaves nothing
    behind in a session that others will use."""
    with (
        psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as other,
    ):
        first = _session(one)
        for _ in range(ROUNDS):
            with other.transaction():
                if _session(other) == first or _session(one) != first:
                    return False
    return True


def _session(connection: psycopg.Connection[tuple[int]]) -> int | None:
    row = connection.execute("select pg_catalog.pg_backend_pid()").fetchone()
    return row and row[0]
