"""The backend of Django's Tasks API. A job is enqueued on Django's own connection, and commits with its transaction."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from outlive import errors
from outlive.django.api import (
    Task,
    TaskResult,
    new_result,
    task_backends,
    task_enqueued,
)
from outlive.django.arguments import fitted
from outlive.django.checks import APP, check_without_django_tasks, problems
from outlive.django.home import HomedBackend
from outlive.django.registry import options_of, register
from outlive.django.schema import in_django


class OutliveBackend(HomedBackend):
    """OPTIONS: `database`, the alias in DATABASES; `modules` with tasks that the worker imports besides those it finds;
    `dashboard_url`, for the links of the admin; and any setting that `outlive.App` takes.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if apps.ready and not apps.is_installed(APP):  # `manage.py check` may import the tasks too late to check them.
            warnings.warn(f"TASKS[{alias!r}] needs {APP!r} in INSTALLED_APPS: it brings the schema", stacklevel=2)
        self.settings = dict(self.options)
        self.database = self.settings.pop("database", "default")
        self.modules: list[str] = self.settings.pop("modules", [])
        self.dashboard_url: str | None = self.settings.pop("dashboard_url", None)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Enqueue a job. It exists when the transaction of Django's connection commits."""
        self.validate_task(task)
        if not apps.is_installed(APP):
            raise ImproperlyConfigured(f"{APP!r} is not in INSTALLED_APPS: add it, then run `manage.py migrate`")
        args, kwargs = fitted(task, args, kwargs)
        ours = register(self, task).using(connection=connections[self.database], **options_of(task))
        try:
            job = ours.enqueue(*args, **kwargs)
        except errors.SchemaMismatch as error:
            raise errors.SchemaMismatch(in_django(error, self.database)) from error
        # Not at the top: tasks, and so this module, may be imported before the models are.
        from outlive.django.results import enqueued_at

        result = new_result(task, job.id, self.alias, args, kwargs, enqueued_at=enqueued_at(job.id, self.database))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a job, as the database has it now."""
        from outlive.django.results import result_of

        return result_of(result_id, self)

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        """What is wrong with the settings of this backend."""
        return problems(self)


def backends() -> dict[str, OutliveBackend]:
    """The backends of outlive in TASKS, by alias. `manage.py check` reports those that can't be imported."""
    found = {}
    for alias in task_backends:
        with suppress(ImproperlyConfigured):
            found[alias] = task_backends[alias]
    return {alias: one for alias, one in found.items() if isinstance(one, OutliveBackend)}


checks.register(check_without_django_tasks)
