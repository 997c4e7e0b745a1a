"""What the shell completes: names that the database knows. A database that does not answer soon completes nothing."""

from __future__ import annotations

SOON = "connect_timeout=2 options='-c statement_timeout=500'"

_QUERIES = {
    "tasks": "select name from outlive.tasks",
    "queues": "select name from outlive.queue_states",
    "sources": "select name from outlive.sources",
    "workers": "select distinct name from outlive.workers where state in ('active', 'stale', 'draining')",
    "schedules": "select name from outlive.schedules",
}


def tasks(incomplete: str) -> list[str]:
    return _names("tasks", incomplete)


def queues(incomplete: str) -> list[str]:
    return _names("queues", incomplete)


def sources(incomplete: str) -> list[str]:
    return _names("sources", incomplete)


def workers(incomplete: str) -> list[str]:
    return _names("workers", incomplete)


def schedules(incomplete: str) -> list[str]:
    return _names("schedules", incomplete)


def _names(kind: str, incomplete: str) -> list[str]:
    """The names that begin so. Never an error: the shell would print it into the line that a person is writing."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        from outlive import config, migrate

        settings = config.load()
        if settings.database_url is None:
            return []  # To start the embedded server takes too long.
        url = make_conninfo(migrate.address(settings), **conninfo_to_dict(SOON))
        with psycopg.connect(url) as connection:
            rows = connection.execute(_QUERIES[kind].encode()).fetchall()
        return sorted(name for (name,) in rows if name.startswith(incomplete))[:100]
    except Exception:
        return []
