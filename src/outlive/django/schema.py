"""The schema in one of Django's databases: whether it is there, and the command of Django that brings it."""

from __future__ import annotations

from outlive import db, errors, migrate
from outlive.django.addresses import address


def problem(database: str) -> str | None:
    """What is wrong with the schema; None if it is right, or if the database can't be asked."""
    try:
        with db.translated_errors(), db.connect(address(database)) as connection:
            migrate.check(connection)
    except errors.SchemaMismatch as error:
        return in_django(error, database)
    except errors.OutliveError:
        pass  # Other checks report it.
    return None


def in_django(error: errors.SchemaMismatch, database: str) -> str:
    """What the error says, with the command of Django that brings the schema."""
    return f"{error.what}: run `manage.py migrate --database {database}`" if error.cure else str(error)
