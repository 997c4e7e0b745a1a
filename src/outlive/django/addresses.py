"""The address of one of Django's databases, in the form in which a worker connects to it."""

from __future__ import annotations

from django.db import connections
from psycopg import pq
from psycopg.conninfo import make_conninfo

from outlive.errors import ConfigError


def address(alias: str) -> str:
    """What DATABASES[alias] says, as far as libpq understands it. The connection sets the role of `assume_role`."""
    connection = connections[alias]
    if connection.vendor != "postgresql":  # libpq would take its own defaults, and find some other database.
        raise ConfigError(
            f"the database {alias!r} in DATABASES is not PostgreSQL: "
            "set OPTIONS['database'] in TASKS to the alias of one that is"
        )
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given = {name: value for name, value in connection.get_connection_params().items() if name in known}
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        escaped = role.replace("\\", "\\\\").replace(" ", "\\ ")
        given["options"] = f"{given.get('options') or ''} -c role={escaped}".strip()
    return make_conninfo(**given)
