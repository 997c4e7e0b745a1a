"""A job as Django's TaskResult, read on Django's own connection: a transaction sees the jobs that it has enqueued."""

from __future__ import annotations

import builtins
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import F, TextField
from django.db.models.functions import Cast
from django.utils.module_loading import import_string

from outlive import errors
from outlive.django.api import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus, new_result
from outlive.django.models import Job, Request
from outlive.django.priorities import django_priority, outlive_priority
from outlive.django.registry import register
from outlive.states import Outcome, State

if TYPE_CHECKING:
    from outlive.django.backend import OutliveBackend

_STATUS = {
    State.PENDING: TaskResultStatus.READY,
    State.RETRYABLE: TaskResultStatus.READY,
    State.BLOCKED: TaskResultStatus.READY,
    State.SUSPENDED: TaskResultStatus.RUNNING,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
    State.QUARANTINED: TaskResultStatus.FAILED,
}
_NO_ERROR = (Outcome.SUCCEEDED, Outcome.RELEASED)
_RAISED = (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.CANCELLED)

_ROWS = Job.objects.annotate(
    text=Cast("request__args", TextField()),
    asked_at=F("request__ready_at"),
    **{name: F(f"ended__{name}") for name in ("outcome", "stack", "worker", "started_at")},
    failure=F("ended__error"),
    value=Cast("ended__result", TextField()),
).order_by("ended__attempt")
"""A job once for each of its attempts that have ended, at least once: all of a result in one query."""


def enqueued_at(job: UUID, database: str) -> datetime:
    """When it was enqueued, by the clock of the database."""
    moment: datetime = Request.objects.using(database).values_list("created_at", flat=True).get(job=job)
    return moment


def result_of(id: str, backend: OutliveBackend) -> TaskResult:
    try:
        rows = list(_ROWS.using(backend.database).filter(id=UUID(id)))
        job = rows[0]
        task = _task(job.task)
    except (ValueError, IndexError) as error:
        raise TaskResultDoesNotExist(id) from error
    attempts = [one for one in rows if one.outcome is not None]
    running = [job] if job.status == State.RUNNING else []
    started = [*(one.started_at for one in attempts), *(one.locked_at for one in running)]
    codec = register(backend, task).codec
    args, kwargs = codec.unpack(job.text.encode())
    result = new_result(
        _as_enqueued(task, backend.alias, job),
        job.id,
        backend.alias,
        args,
        kwargs,
        status=_STATUS[State(job.status)],
        enqueued_at=job.created_at,
        started_at=next(iter(started), None),
        last_attempted_at=next(reversed(started), None),
        finished_at=job.completed_at or (job.held_since if job.status == State.QUARANTINED else None),
        errors=[_error(one) for one in attempts if one.outcome not in _NO_ERROR],
        worker_ids=[*(one.worker or "" for one in attempts), *(one.locked_by for one in running)],
    )
    if job.status == State.SUCCEEDED and (text := attempts[-1].value) is not None:
        object.__setattr__(result, "_return_value", codec.decode_result(text.encode()))
    return result


def _task(path: str) -> Task:
    """Django's task by its module path. ValueError if it is not a task of Django: other apps may share the database."""
    try:
        task = import_string(path)
    except ImportError as error:
        raise ValueError(path) from error
    if not isinstance(task, Task):
        raise ValueError(path)
    return task


def _as_enqueued(task: Task, alias: str, job: Any) -> Task:
    """The task with the options that the job was enqueued with. Of its priority only the rank is known."""
    same = outlive_priority(task.priority) == job.priority
    deferred = job.asked_at > job.created_at
    return task.using(
        backend=alias,
        queue_name=job.queue,
        priority=task.priority if same else django_priority(job.priority),
        run_after=job.asked_at if deferred else None,
    )


def _error(attempt: Any) -> TaskError:
    text = f"{attempt.outcome}: {attempt.failure}" if attempt.failure else attempt.outcome
    if attempt.stack:  # A traceback ends with its exception. Other stacks don't say why the attempt ended.
        text = attempt.stack if attempt.outcome == Outcome.FAILED else f"{text}\n{attempt.stack}"
    return TaskError(exception_class_path=_exception_path(attempt), traceback=text)


def _exception_path(attempt: Any) -> str:
    """The class of the exception, as its traceback ends. A process that died or was killed has raised nothing."""
    kind = (attempt.failure or "").partition(":")[0]
    if attempt.outcome in _RAISED and kind.isidentifier():
        found = re.findall(rf"^(?:([\w.]+)\.)?{kind}(?::|$)", attempt.stack or "", re.MULTILINE)
        if found and found[-1]:
            return f"{found[-1]}.{kind}"
        for module in (builtins, errors):
            if hasattr(module, kind):
                return f"{module.__name__}.{kind}"
    return f"{errors.JobFailed.__module__}.{errors.JobFailed.__qualname__}"
