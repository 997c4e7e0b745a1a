"""Where the tasks of outlive.celery have their jobs in a project of Django: outlive/celery/home.py asks for it.

Nothing is kept here: test runners rename the database, and tests replace TASKS, after the tasks are imported.
"""

from __future__ import annotations

import sys

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

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
    if _is_tested():
        raise ConfigError(
            "TASKS has no backend of outlive in this test, and a test does not use the database of your settings: "
            "let one stand beside `default`, under another alias"
        )
    return None


def transaction() -> BaseDatabaseWrapper | None:
    """Django's connection, while a test holds a transaction open there: the jobs are rolled back with the test."""
    if not _is_tested() or (found := backend()) is None:
        return None
    connection = connections[found.database]
    return connection if connection.in_atomic_block else None


def _is_tested() -> bool:
    """Whether this process runs tests of Django, as `manage.py test` and pytest-django do."""
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return hasattr(state, "saved_data")
