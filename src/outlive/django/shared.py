"""Where the tasks of outlive.celery have their jobs in a project of Django: outlive/celery/home.py asks for it.

Nothing is kept here: test runners rename the database, and tests replace TASKS, after the tasks are imported.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from contextlib import suppress

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from outlive.client import redirection
from outlive.client.app import App
from outlive.django.backend import OutliveBackend, backends
from outlive.django.registry import app_of
from outlive.errors import ConfigError


def backend() -> OutliveBackend | None:
    """The backend that runs shared tasks: `default` if it is one of outlive, or else the first of outlive in TASKS."""
    found = backends()
    return found.get("default") or next(iter(found.values()), None)


def app() -> App | None:
    """The app in whose database shared tasks have their jobs. None: the project has no backend of outlive."""
    if (found := backend()) is not None:
        return app_of(found)
    if redirection.django_tests():
        raise ConfigError(
            "TASKS has no backend of outlive in this test, and a test does not use the database of your settings: "
            "let one stand beside `default`, under another alias"
        )
    return None


def connected() -> App | None:
    """The same for a call that connects. A test that Django gives no database is refused in its words: there may be no
    test database, and then the settings still name that of development."""
    if redirection.django_tests() and (found := backend()) is not None:
        with suppress(SynchronousOnlyOperation):  # In async code Django refuses a test that it gives no database first.
            connections[found.database].ensure_connection()
            connections[found.database].cursor().close()
    return app()


def transaction() -> BaseDatabaseWrapper | None:
    """Django's connection, while a test holds a transaction open there: the jobs are rolled back with the test. Async
    code can't use it."""
    if not redirection.django_tests() or _get_running_loop() is not None or (found := backend()) is None:
        return None
    connection = connections[found.database]
    return connection if connection.in_atomic_block else None
