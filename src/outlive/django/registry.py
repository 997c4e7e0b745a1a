"""The outlive.App of each backend, with Django's tasks on it.

Django makes one backend for each thread; the app is one for the process. It is made when it is first needed, because
test runners change the names of databases after the tasks are imported.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from outlive import config as configuration
from outlive.client.app import App
from outlive.client.task import Task as OutliveTask
from outlive.django import ATTRIBUTE
from outlive.django.addresses import address
from outlive.django.api import Task
from outlive.django.running import runner

if TYPE_CHECKING:
    from outlive.django.backend import OutliveBackend

_apps: dict[tuple[str, str], App] = {}
_lock = threading.Lock()


def app_of(backend: OutliveBackend) -> App:
    key = backend.alias, str(connections[backend.database].settings_dict["NAME"])
    with _lock:
        if key not in _apps:
            _apps[key] = _new_app(backend.database, backend.settings)
        return _apps[key]


def _new_app(database: str, settings: Mapping[str, Any]) -> App:
    url = address(database)
    app = App(url, **settings)
    # Django's settings name the database, whatever OUTLIVE_DATABASE_URL says.
    app.configure(configuration.load(app=app.settings, flags={"database_url": url}))
    return app


def register(backend: OutliveBackend, task: Task) -> OutliveTask[..., Any, Any]:
    """Django's task as a task of the app. It has the same name in both: its module path."""
    app = app_of(backend)
    with _lock:
        found = app.tasks.get(task.module_path)
        if found is None:
            options = getattr(task.func, ATTRIBUTE, {})
            found = app.task(queue=task.queue_name, **options)(runner(task, backend.alias))
        return found


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("TASKS", "DATABASES"):
        _close()
        _apps.clear()


def _let_go(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    """Django connects without a database before it drops a test database, which must have no other session then."""
    if connection.alias == NO_DB_ALIAS:
        _close()


def _close() -> None:
    for app in list(_apps.values()):
        app.connections.close()


setting_changed.connect(_forget)
connection_created.connect(_let_go)
