"""The tasks of a project, and their schedules: what a worker declares, and `manage.py check` looks at."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping

from django.conf import settings
from django.core import checks
from django.utils.module_loading import autodiscover_modules

from outlive import importing
from outlive.client import redirection
from outlive.client.app import App
from outlive.django import SCHEDULES
from outlive.django.api import Task
from outlive.django.arguments import fitted
from outlive.django.backend import OutliveBackend, backends
from outlive.django.priorities import outlive_priority
from outlive.django.registry import app_of, register
from outlive.errors import ConfigError, OutliveError


def import_tasks() -> None:
    """Import the modules `tasks` of all apps, the views, whose modules may have tasks too, and OPTIONS["modules"]."""
    autodiscover_modules("tasks")
    if root := getattr(settings, "ROOT_URLCONF", None):
        importlib.import_module(root)
    for backend in backends().values():
        for name in backend.modules:
            importlib.import_module(name)


def all_tasks() -> list[Task]:
    """Each task of a module that is imported, whatever its backend: `using(backend=…)` may have changed that.

    `isinstance` would set up lazy objects, such as the site of an admin that the project does not use.
    """
    modules = [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    return [one for names in modules for one in list(names.values()) if issubclass(type(one), Task)]


def declare(backend: OutliveBackend, task: Task) -> None:
    """Register a task with the app of a backend, and its schedules if it is a task of this backend."""
    own = register(backend, task)
    schedules = getattr(task.func, SCHEDULES, ()) if task.backend == backend.alias else ()
    for cron, given in schedules:
        args = given.get("args") or ()
        try:
            fitted(task, *(((), args) if isinstance(args, Mapping) else (args, {})))
        except (TypeError, ValueError) as error:
            code = inspect.unwrap(task.func).__code__
            where = f"{importing.short(code.co_filename)}, line {code.co_firstlineno}"
            name = given.get("name") or task.module_path
            raise ConfigError(f"{where}: the schedule {name} is refused: {error}") from None
        schedule = app_of(backend).schedule(cron, **given, priority=outlive_priority(task.priority))
        schedule(own)


def problems(backend: OutliveBackend) -> Iterator[checks.CheckMessage]:
    """What a worker of this backend would not start with."""
    from outlive.timetable import Timetable  # Not at the top: a worker imports this module, and each fork would pay.

    import_tasks()
    for task in all_tasks():
        try:
            declare(backend, task)
        except OutliveError as error:
            yield checks.Error(str(error), id="outlive.E008")
    for schedule in app_of(backend).declared_schedules.values():
        try:
            Timetable(schedule)
        except ConfigError as error:
            yield checks.Error(str(error), id="outlive.E008")


def strays() -> list[checks.CheckMessage]:
    """Tasks of apps that are not Django's: `manage.py outlive_worker` does not run them. `problems` imports them."""
    tasks = [next(iter(app.tasks)) for app in redirection.apps() if type(app) is App and app.tasks]
    return [
        checks.Warning(
            f"{task} is a task of an outlive.App of its own, which no worker of manage.py outlive_worker runs.",
            hint="Make the app with outlive.django.app(): its jobs are in the database of TASKS, in tests too.",
            id="outlive.W003",
        )
        for task in tasks
    ]
