"""Django's Tasks API: that of Django 6, or the same one from django-tasks for Django 5.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

try:
    from django.tasks import TaskContext as TaskContext
    from django.tasks import task_backends as task_backends
    from django.tasks.backends.base import BaseTaskBackend as BaseTaskBackend
    from django.tasks.base import Task as Task
    from django.tasks.base import TaskError as TaskError
    from django.tasks.base import TaskResult as TaskResult
    from django.tasks.base import TaskResultStatus as TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist as TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued as task_enqueued
    from django.tasks.signals import task_finished as task_finished
    from django.tasks.signals import task_started as task_started
    from django.utils.json import normalize_json as normalize_json
except ModuleNotFoundError:
    from django_tasks import TaskContext as TaskContext
    from django_tasks import task_backends as task_backends
    from django_tasks.backends.base import BaseTaskBackend as BaseTaskBackend
    from django_tasks.base import Task as Task
    from django_tasks.base import TaskError as TaskError
    from django_tasks.base import TaskResult as TaskResult
    from django_tasks.base import TaskResultStatus as TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist as TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued as task_enqueued
    from django_tasks.signals import task_finished as task_finished
    from django_tasks.signals import task_started as task_started
    from django_tasks.utils import normalize_json as normalize_json


def new_result(
    task: Task, id: object, alias: str, args: Sequence[Any], kwargs: Mapping[str, Any], **known: Any
) -> TaskResult:
    """The result of a job of the backend TASKS[alias], with what is known of it."""
    unknown = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    empty = {"status": TaskResultStatus.READY, "errors": [], "worker_ids": [], **unknown}
    return TaskResult(task=task, id=str(id), backend=alias, args=list(args), kwargs=dict(kwargs), **{**empty, **known})
