"""The apps of a project's backends, as a worker imports them: `outlive worker outlive.django.worker:default`.

The name after the colon is the alias in TASKS. Importing this module sets Django up, finds the tasks, and closes every
connection that this has opened: each job is a fork of this process, and opens its own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

import django
from django.conf import settings
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from outlive.client.app import App
from outlive.django import SCHEDULES
from outlive.django.api import Task
from outlive.django.backend import OutliveBackend, backends, fitted
from outlive.django.priorities import outlive_priority
from outlive.django.registry import app_of, register
from outlive.errors import BadArguments


def _import_tasks() -> None:
    """Import the modules `tasks` of all apps, the views, whose modules may have tasks too, and OPTIONS["modules"]."""
    autodiscover_modules("tasks")
    if root := getattr(settings, "ROOT_URLCONF", None):
        importlib.import_module(root)
    for backend in backends().values():
        for name in backend.modules:
            importlib.import_module(name)


def _take_shared() -> None:
    """Let the backend `default` run the tasks of outlive.celery too, if the project has any."""
    celery, backend = sys.modules.get("outlive.celery"), backends().get("default")
    if celery is not None and backend is not None:
        app, shared = app_of(backend), celery.app
        app.tasks |= shared.tasks
        app.sources |= shared.sources
        app.schedules |= shared.schedules
        app.process_starts += shared.process_starts
        app.lifespans += shared.lifespans


def _all_tasks() -> list[Task]:
    """Each task of a module that is imported, whatever its backend: `using(backend=…)` may have changed that.

    `isinstance` would set up lazy objects, such as the site of an admin that the project does not use.
    """
    modules = [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    return [one for names in modules for one in list(names.values()) if issubclass(type(one), Task)]


def _declare_schedules(backend: OutliveBackend, task: Task) -> None:
    for cron, given in getattr(task.func, SCHEDULES, ()):
        args = given.get("args") or ()
        try:
            fitted(task, *(((), args) if isinstance(args, Mapping) else (args, {})))
        except TypeError as error:
            raise BadArguments(f"a schedule is refused: {error}") from None
        schedule = app_of(backend).schedule(cron, **given, priority=outlive_priority(task.priority))
        schedule(register(backend, task))


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
        if connection.vendor == "postgresql":
            connection.close_pool()


def _shrink_pools() -> None:
    """Let the pool of a job's process open no connection before the job needs it. Django's default opens four."""
    for connection in connections.all():
        given = connection.settings_dict["OPTIONS"]
        if connection.vendor == "postgresql" and (pool := given.get("pool")):
            sizes = {} if pool is True else pool
            most = sizes.get("max_size") or sizes.get("min_size", 4)
            given["pool"] = {**sizes, "min_size": 0, "max_size": most}


def __getattr__(alias: str) -> App:
    """The app of a backend, with all tasks."""
    backend = backends().get(alias)
    if backend is None:
        raise AttributeError(alias)
    for task in _all_tasks():
        register(backend, task)
        if task.backend == alias:
            _declare_schedules(backend, task)
    return app_of(backend)


django.setup()
_import_tasks()
_take_shared()
_close_connections()
_shrink_pools()
