"""The outlive.App of each backend, with Django's tasks on it, and its own.

Django makes one backend for each thread; the app is one for the process, and keeps its tasks whatever becomes of
TASKS. Which database it uses is decided in home.py.
"""

from __future__ import annotations

import threading
from typing import Any

from django.core.signals import setting_changed
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.utils import timezone
from django.utils.module_loading import import_string

from outlive.client import redirection
from outlive.client.home import HomedApp
from outlive.client.task import Task as OutliveTask
from outlive.django import ATTRIBUTE
from outlive.django.api import Task
from outlive.django.home import DjangoHome, HomedBackend, backend_of
from outlive.django.priorities import outlive_priority
from outlive.django.running import runner


class DjangoApp(HomedApp):
    def __init__(self, alias: str) -> None:
        super().__init__()
        self._home = DjangoHome(alias)

    @property
    def home(self) -> DjangoHome | None:
        elsewhere = redirection.database_url is not None and not redirection.django_tests()
        return None if elsewhere else self._home  # None: a test of our plugin runs, without Django's tests.

    @staticmethod
    def _own_task(given: object) -> Any:
        return task_of_app(given) if isinstance(given, Task) else given


_apps: dict[str, DjangoApp] = {}
_lock = threading.Lock()


def app_named(alias: str) -> DjangoApp:
    """The app of TASKS[alias], whatever that is: a module of tasks may be imported while a test replaces TASKS."""
    with _lock:
        if alias not in _apps:
            _apps[alias] = DjangoApp(alias)
        return _apps[alias]


def app_of(backend: HomedBackend) -> DjangoApp:
    """The app of a backend, with its settings, as a worker takes them."""
    app = app_named(backend.alias)
    app.settings = DjangoHome.settings(backend)
    return app


def home_of(alias: str) -> DjangoHome:
    return app_named(alias)._home


def register(backend: HomedBackend, task: Task) -> OutliveTask[..., Any, Any]:
    """Django's task as a task of the app. It has the same name in both: its module path."""
    app = app_named(backend.alias)
    with _lock:
        found = app.tasks.get(task.module_path)
        if found is None:
            options = getattr(task.func, ATTRIBUTE, {})
            found = app.task(queue=task.queue_name, **options)(runner(task, backend.alias))
        return found


def task_of_app(task: Task) -> OutliveTask[..., Any, Any]:
    """A task of Django as the one of its backend's app, with those options that `using` has given it."""
    declared = options_of(import_string(task.module_path))
    given = {name: value for name, value in options_of(task).items() if declared.get(name) != value}
    return register(backend_of(task.backend), task).using(**given)


def options_of(task: Task) -> dict[str, Any]:
    """What a task of Django says of its jobs, as options of outlive."""
    options: dict[str, Any] = {"queue": task.queue_name, "priority": outlive_priority(task.priority)}
    if (moment := task.run_after) is not None:
        options["run_at"] = moment if timezone.is_aware(moment) else timezone.make_aware(moment)
    return options


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("TASKS", "DATABASES"):
        for app in list(_apps.values()):
            app._home.forget()


def _let_go(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    """Django connects without a database before it drops a test database, which must have no other session then."""
    if connection.alias == NO_DB_ALIAS:
        for app in list(_apps.values()):
            app._home.close()


setting_changed.connect(_forget)
connection_created.connect(_let_go)
