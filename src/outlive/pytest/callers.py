"""The caller's connections in a test. One that leads to another database than the test's own is refused: `outlive_jobs`
would neither find the job there nor run it. Django's test database is taken, where it does both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from outlive import caller_connections
from outlive.caller_connections import Borrowed
from outlive.errors import WrongConnection
from outlive.statement import Statement

_DATABASE: Statement[str] = Statement("database", b"select current_database()::text", (), lambda rows: str(rows[0][0]))


@contextmanager
def guarded(url: str) -> Iterator[None]:
    """Within this block, connections to other databases are refused before anything is written there."""

    def borrow(connection: Any, otherwise: str) -> Borrowed:
        borrowed = plain(connection, otherwise)
        _expect(caller_connections.run_all(borrowed, [_DATABASE])[0], own)
        return borrowed

    async def aborrow(connection: Any, otherwise: str) -> Borrowed:
        borrowed = await aplain(connection, otherwise)
        _expect((await caller_connections.arun_all(borrowed, [_DATABASE]))[0], own)
        return borrowed

    own = str(conninfo_to_dict(url)["dbname"])  # No other database of any server has this name.
    plain, aplain = caller_connections.borrow, caller_connections.aborrow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caller_connections, "borrow", borrow)
        patch.setattr(caller_connections, "aborrow", aborrow)
        try:
            yield
        finally:
            if "outlive.testing.of_django" in sys.modules:
                from outlive.testing import of_django

                of_django.written.clear()


def _expect(database: str, own: str) -> None:
    if database == own:
        return
    if "outlive.django.registry" in sys.modules:
        from outlive.testing import of_django

        if of_django.takes(database):
            return
    raise WrongConnection(
        f"connection leads to the database {database}, where this test finds no job: open it at the address that the "
        "fixture outlive_db gives; in Django's test database jobs are found if TASKS has a backend of outlive there"
    )
