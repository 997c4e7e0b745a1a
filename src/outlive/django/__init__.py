"""A backend for Django's Tasks API: docs/how-to/django.md.

`outlive.django` goes into INSTALLED_APPS, and `outlive.django.backend.OutliveBackend` into TASKS. Nothing here imports
Django before it is used: modules of tasks import this one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack

from outlive import errors, policy, validation

if TYPE_CHECKING:
    from outlive.client.app import App
    from outlive.client.declaring import TaskOptions
    from outlive.client.schedule import ScheduleOptions

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "outlive_options"
"""Where a function keeps the options of its task."""
SCHEDULES = "outlive_schedules"
"""Where it keeps its schedules: the cron expression and the options of each."""


def options(*functions: Never, **given: Unpack[TaskOptions]) -> Callable[[F], F]:
    """The options of outlive for a task of Django, below its decorator. All that `@app.task` takes, except `queue` and
    `name`:

    @task(queue_name="mail")
    @outlive.django.options(max_attempts=3, timeout="10m")
    def send(order: int) -> None: ...
    """
    from outlive.client.declaring import OPTIONS
    from outlive.client.options import JobOptions

    if functions:
        raise TypeError("write @outlive.django.options(…), with what it sets, below @task")
    if "queue" in given:
        raise errors.ConfigError("the queue of a task of Django is set by @task(queue_name=…), not by an option")
    if "name" in given:
        raise errors.ConfigError(
            "the name of a task of Django is the path of its function: leave name out, and if the function has moved, "
            "give its former path with was=…"
        )
    if of_jobs := given.keys() & JobOptions.__annotations__.keys() - OPTIONS.keys():
        raise errors.ConfigError(
            f"{min(of_jobs)} is an option of one job, and Django's API has none of these: declare the task with "
            f"@app.task of outlive.django.app(), and write task.using({min(of_jobs)}=…).enqueue(…) "
            "(docs/how-to/django.md)"
        )
    allowed = {name: check for name, check in OPTIONS.items() if name not in ("queue", "name")}
    validation.known("@outlive.django.options", "option", given, allowed)
    policy.parse(given, allowed)

    def keep(function: F) -> F:
        _expect_function("options", function)
        setattr(function, ATTRIBUTE, given)
        return function

    return keep


def schedule(cron: str | None = None, /, **given: Unpack[ScheduleOptions]) -> Callable[[F], F]:
    """Enqueue jobs of a task of Django at the times of a cron expression, or every so often, below its decorator. All
    that `@app.schedule` takes, except `queue` and `priority`, which are those of the task:

    @task
    @outlive.django.schedule("0 3 * * *", timezone="Europe/Berlin")
    def tidy() -> None: ...
    """
    from outlive.client.schedule import checked

    for name in {"queue", "priority"}.intersection(given):
        raise errors.ConfigError(f"{name} is not an option of @outlive.django.schedule: @task sets it")
    checked("@outlive.django.schedule", cron, given)

    def keep(function: F) -> F:
        _expect_function("schedule", function)
        setattr(function, SCHEDULES, [*getattr(function, SCHEDULES, ()), (cron, given)])
        return function

    return keep


def _expect_function(decorator: str, function: object) -> None:
    if not inspect.isfunction(function):
        kind = type(function).__name__
        raise TypeError(f"put @outlive.django.{decorator}(…) below @task: it takes the function, not a {kind}")


def app(alias: str = "default") -> App:
    """The outlive.App behind a backend, for what Django's API lacks: `app().get_job(UUID(result.id)).result(10)`, and
    tasks of outlive itself. Its jobs are enqueued in the transaction that Django has open, and its tests use Django's
    test database."""
    from outlive.django.registry import app_named

    return app_named(alias)
