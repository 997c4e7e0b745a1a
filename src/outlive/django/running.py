"""What a job's process calls in place of a task's function: the function, with what Django does around a request.

The function gets plain JSON, as Django's API promises, and not values as it is annotated. A job's process inherits no
connection: `worker.py` closes them before the first fork.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

import outlive
from outlive import job_gateway
from outlive.arguments import Codec
from outlive.django.api import (
    BaseTaskBackend,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    new_result,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from outlive.django.arguments import fitted
from outlive.django.priorities import outlive_priority
from outlive.errors import BadArguments, Restarted
from outlive.policy import Parameter


class NotJson(outlive.Fail, TypeError):
    """The function returned what is not JSON. Another attempt would not help."""


NotJson.__module__, NotJson.__name__, NotJson.__qualname__ = "builtins", "TypeError", "TypeError"  # As in Django's own.

_NO_FAILURE = (outlive.Snooze, outlive.Cancel, outlive.Stopped, outlive.SourcePaused, Restarted)
"""The job asks for something else."""


def runner(task: Task, alias: str) -> Callable[..., Any]:
    """A function with the name of the task's own, which runs it for the backend TASKS[alias]."""

    def run(*args: Any, **kwargs: Any) -> Any:
        _close_old_connections()
        try:
            return _call(task, alias, args, kwargs)
        finally:
            _close_old_connections()

    run.__module__, run.__qualname__ = task.func.__module__, task.func.__qualname__
    run.__doc__ = task.func.__doc__
    vars(run)["check_arguments"] = functools.partial(_check_arguments, task)
    vars(run)["declared_priority"] = functools.partial(_declared_priority, task.module_path)
    vars(run)["outlive_parameters"] = functools.partial(_parameters, task)
    return run


def _close_old_connections() -> None:
    """As Django does around a request, and its test client: the transaction of a test stays open."""
    for connection in connections.all(initialized_only=True):
        if not any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            connection.close_if_unusable_or_obsolete()


def _parameters(task: Task) -> tuple[Parameter, ...]:
    """What the dashboard's form asks for. The context, which comes first, is not given by a caller."""
    parameters = Codec(task.module_path, task.func).parameters()
    return parameters[1:] if task.takes_context else parameters


def _declared_priority(path: str) -> int:
    """What a schedule asks: the policy has none, and the task of the runner may be from `using`."""
    return outlive_priority(import_string(path).priority)


def _check_arguments(task: Task, args: list[Any], kwargs: dict[str, Any]) -> None:
    """What `outlive enqueue` asks: `run` itself takes any arguments."""
    try:
        fitted(task, args, kwargs)
    except (TypeError, ValueError) as error:
        raise BadArguments(str(error)) from None


def _call(task: Task, alias: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    backend = task_backends[alias]
    result = _result(task, backend, args, kwargs)
    sender = type(backend)
    task_started.send(sender, task_result=result)
    given = (TaskContext(task_result=result), *args) if task.takes_context else args
    try:
        value = task.call(*given, **kwargs)
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as error:
            raise NotJson(f"its return value is not JSON: {error}") from error
    except BaseException as error:  # As outlive does: a job that exits has failed.
        if _ends_job(error):
            _finish(result, TaskResultStatus.FAILED)
            result.errors.append(_error(error))
            task_finished.send(sender, task_result=result)
        raise
    object.__setattr__(result, "_return_value", value)
    _finish(result, TaskResultStatus.SUCCESSFUL)
    task_finished.send(sender, task_result=result)
    return value


def _ends_job(error: BaseException) -> bool:
    """Whether the job fails for good. Django reports each `task_finished` that has failed: it logs an error and mails
    the admins, and Sentry makes an event. An attempt that is tried again does nothing like that."""
    account = job_gateway.account()
    if isinstance(error, _NO_FAILURE) or account is None:
        return False
    refused = isinstance(error, outlive.Fail) or (
        account.policy.is_final(error) and not isinstance(error, outlive.Retry)
    )
    return refused or outlive.current().last_attempt


def _result(task: Task, backend: BaseTaskBackend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskResult:
    """The result as far as this process knows it. A task that takes the context gets the one from the database."""
    context = outlive.current()
    if task.takes_context:
        return backend.get_result(str(context.job_id))
    workers, now = [str(context.worker)] * context.attempt, timezone.now()
    known = {"status": TaskResultStatus.RUNNING, "started_at": now, "last_attempted_at": now, "worker_ids": workers}
    return new_result(task, context.job_id, backend.alias, args, kwargs, **known)


def _finish(result: TaskResult, status: TaskResultStatus) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())


def _error(error: BaseException) -> TaskError:
    import traceback

    kind = type(error)
    text = "".join(traceback.format_exception(error))
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
