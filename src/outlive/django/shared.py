"""Which backend runs the tasks of outlive.celery in a project of Django: outlive/celery/home.py asks for it.

Nothing is kept here: tests replace TASKS after the tasks are imported.
"""

from __future__ import annotations

from outlive.client import redirection
from outlive.django.backend import OutliveBackend, backends
from outlive.django.home import DjangoHome
from outlive.django.registry import home_of
from outlive.errors import ConfigError


def backend() -> OutliveBackend | None:
    """The backend that runs shared tasks: `default` if it is one of outlive, or else the first of outlive in TASKS."""
    found = backends()
    return found.get("default") or next(iter(found.values()), None)


def home() -> DjangoHome | None:
    """The database in which shared tasks have their jobs. None: the project has no backend of outlive."""
    if (found := backend()) is not None:
        return home_of(found.alias)
    if redirection.django_tests():
        raise ConfigError(
            "TASKS has no backend of outlive in this test, and a test does not use the database of your settings: "
            "let one stand beside `default`, under another alias"
        )
    return None
