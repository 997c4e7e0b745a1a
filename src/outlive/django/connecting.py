"""Django's connections: a process whose forks run jobs keeps none, and a test may lack some."""

from __future__ import annotations

from contextlib import suppress

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections


def close_connections() -> None:
    """Close all connections and pools that this process has opened."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if connection.vendor == "postgresql":
            connection.close_pool()


def shrink_pools() -> None:
    """Let the pool of a job's process open no connection before the job needs it. Django's default opens four."""
    for connection in connections.all():
        given = connection.settings_dict["OPTIONS"]
        if connection.vendor == "postgresql" and (pool := given.get("pool")):
            sizes = {} if pool is True else pool
            most = sizes.get("max_size") or sizes.get("min_size", 4)
            given["pool"] = {**sizes, "min_size": 0, "max_size": most}


def expect_access(database: str) -> None:
    """Let Django refuse, in its words, a test that it gives no database. There may be no test database, and then the
    settings still name that of development."""
    with suppress(SynchronousOnlyOperation):  # In async code Django refuses a test that it gives no database first.
        connections[database].ensure_connection()
        connections[database].cursor().close()
