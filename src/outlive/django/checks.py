"""`manage.py check`: what is wrong with the settings of a project."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.core import checks
from django.db import connections

from outlive import config, errors, migrate, validation
from outlive.client.app import App
from outlive.django.addresses import address
from outlive.django.api import task_backends

if TYPE_CHECKING:
    from outlive.django.backend import OutliveBackend

APP = "outlive.django"
OURS = ("database", "modules", "dashboard_url")
"""The OPTIONS that are not settings of outlive."""


def problems(backend: OutliveBackend) -> Iterator[checks.CheckMessage]:
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed(APP):
        yield checks.Error(f"{where} needs {APP!r} in INSTALLED_APPS: it brings the schema.", id="outlive.E001")
    if backend.database not in connections:
        yield checks.Error(
            f"{where} names the database {backend.database!r}, which DATABASES does not have.",
            hint="Set OPTIONS['database'] to one of its aliases.",
            id="outlive.E002",
        )
    elif connections[backend.database].vendor != "postgresql":
        yield checks.Error(
            f"{where} keeps its jobs in the database {backend.database!r}, which is not PostgreSQL.",
            hint="Set OPTIONS['database'] to the alias of one that is.",
            id="outlive.E003",
        )
    try:
        if "database_url" in backend.options:
            raise errors.ConfigError("DATABASES has the address; set database to the alias there, not database_url")
        validation.known("OPTIONS", "setting", backend.options, (*OURS, *config.KEYS))
        App(**backend.settings)
    except errors.ConfigError as error:
        yield checks.Error(f"The OPTIONS of {where} are refused: {error}", id="outlive.E004")
    yield from _problems_of_modules(where, backend.modules)


def _problems_of_modules(where: str, modules: object) -> Iterator[checks.CheckMessage]:
    named = f"The OPTIONS of {where} are refused: modules"
    if not isinstance(modules, list | tuple):
        yield checks.Error(f"{named} is {modules!r}: it must be a list of modules' names.", id="outlive.E005")
        return
    for name in modules:
        if not _is_there(name):
            yield checks.Error(f"{named} has {name!r}, and there is no such module.", id="outlive.E005")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # Its package is not there.
        return False


def check_address(usable: Collection[OutliveBackend]) -> list[checks.CheckMessage]:
    """Django's settings name the database, so an address that outlive has besides must be the same."""
    url = config.load().database_url
    named = [migrate.place(address(one.database)) for one in usable]
    if url is None or not named or migrate.place(url) in named:
        return []
    return [
        checks.Warning(
            f"OUTLIVE_DATABASE_URL, or outlive.toml, names the database {migrate.place(url)}, and DATABASES has "
            f"{named[0]}: that one has all jobs of this project, of shared tasks too.",
            hint="Leave OUTLIVE_DATABASE_URL out: only `outlive` without `manage.py` looks there.",
            id="outlive.W002",
        )
    ]


def check_without_django_tasks(**_: Any) -> list[checks.CheckMessage]:
    """With Django 5.2, the app of django-tasks has the backends checked. Without it, this does."""
    if django.VERSION >= (6, 0) or apps.is_installed("django_tasks"):
        return []
    missing = checks.Error(
        "Django 5.2 needs 'django_tasks' in INSTALLED_APPS, beside 'outlive.django'.",
        hint="It checks TASKS, and logs when tasks start and end.",
        id="outlive.E006",
    )
    return [missing, *(one for backend in task_backends.all() for one in backend.check())]
