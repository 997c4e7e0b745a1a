"""What the shell completes: names that the database knows. A database that does not answer soon completes nothing."""

from __future__ import annotations

from collections.abc import Callable

SOON = "connect_timeout=2 options='-c statement_timeout=500 -c search_path=pg_catalog'"


def _names(query: str) -> Callable[[str], list[str]]:
    """Completes the names that a query finds."""

    def complete(incomplete: str) -> list[str]:
        try:
            return sorted(name for name in _found(query) if name.startswith(incomplete))[:100]
        except Exception:  # The shell would print it into the line that a person is writing.
            return []

    return complete


def _found(query: str) -> list[str]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from outlive import config, migrate

    settings = config.load()
    if settings.database_url is None:
        return []  # To start the embedded server takes too long.
    url = make_conninfo(migrate.address(settings), **conninfo_to_dict(SOON))
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute(query.encode()).fetchall()]


tasks = _names("select name from outlive.tasks")
queues = _names("select name from outlive.queue_states")
sources = _names("select name from outlive.sources")
workers = _names("select distinct name from outlive.workers where state in ('active', 'stale', 'draining')")
schedules = _names("select name from outlive.schedules")
