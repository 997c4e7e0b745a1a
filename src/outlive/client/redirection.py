"""Redirection: in a test, every app of the process uses the test's own database, whatever its settings say.

Only the pytest plugin redirects; the tests of Django have a rule of their own (outlive/django/home.py). Apps note
themselves when they are made, so those of all modules are found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from outlive.client.app import App

database_url: str | None = None
"""The database that every app uses instead of its own; None outside of tests."""
_apps: WeakValueDictionary[int, App] = WeakValueDictionary()
_numbers = count()


def note(app: App) -> None:
    _apps[next(_numbers)] = app


def apps() -> list[App]:
    """The apps of this process, in the order in which they were made."""
    return [app for _, app in sorted(_apps.items())]


@contextmanager
def redirected(url: str) -> Iterator[None]:
    """Let all apps use this database, even those that are made meanwhile, and restore their settings afterwards."""
    global database_url
    database_url = url
    before = {id(app): app.configure(None) for app in apps()}
    try:
        yield
    finally:
        database_url = None
        for app in apps():
            app.configure(before.get(id(app)))


REFUSED = (
    "a test of Django does not use the database of your settings: add outlive.django to INSTALLED_APPS and a "
    "backend of outlive to TASKS, and make the app with outlive.django.app(), which uses the test database "
    "(docs/how-to/django.md); or take the fixture outlive_jobs of outlive's pytest plugin"
)
"""An app whose database is not that of a test: a worker of development would run the jobs of the test."""


def django_tests() -> bool:
    """Whether this process runs tests of Django, as `manage.py test` and pytest-django do."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")
