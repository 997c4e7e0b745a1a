"""Celery's calls on top of outlive, so that a code base moves file by file: change the line of the import first.

    from outlive.celery import app, chain, group, shared_task    # before: from celery import chain, group, shared_task

Options that mean something else in outlive are refused, with what to write: docs/how-to/migrate-from-celery.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import outlive
from outlive.client.app import App
from outlive.client.job import Job
from outlive.client.linking import result_of
from outlive.client.task import BoundJob, Task
from outlive.errors import ConfigError, Retry
from outlive.validation import MAX_COUNT

app = App()
"""All tasks of `shared_task` are on this app: a module that imports it and them is what `outlive worker` takes."""
_SENT = {"countdown": "delay", "eta": "run_at", "expires": "expires", "queue": "queue", "task_id": "id"}


def shared_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A task, as `@shared_task` or `@shared_task(bind=True, max_retries=5, …)`.

    As in Celery, only the exceptions of `autoretry_for` are retried, and `self.retry()`.
    """
    bind, retries = options.pop("bind", False), options.pop("max_retries", 3)
    options.pop("ignore_result", None)  # A job without a return value stores nothing.
    ours: dict[str, Any] = {"fail_on": Exception, "backoff": [options.pop("default_retry_delay", 180)]}
    ours["max_attempts"] = MAX_COUNT if retries is None else retries + 1
    for name, word in (("autoretry_for", "retry_on"), ("retry_backoff", "backoff"), ("time_limit", "timeout")):
        if given := options.pop(name, None):
            ours[word] = tuple(given) if name == "autoretry_for" else float(given)
    if not options.pop("acks_late", True):
        ours["on_worker_death"] = "fail"

    def register(function: Callable[..., Any]) -> SharedTask:
        return SharedTask(app.task(**ours, **options)(_bound(function) if bind else function))

    return register if function is None else register(function)


class Request:
    """`self` of a task with `bind=True`, and its `request`."""

    def __init__(self) -> None:
        self.request, self.id, self.retries = self, str(outlive.current().job_id), outlive.current().attempt - 1

    def retry(self, exc: BaseException | None = None, countdown: float | None = None) -> Retry:
        """Raise what lets outlive try again, up to `max_retries`."""
        raise Retry("" if exc is None else f"{type(exc).__name__}: {exc}", after=countdown) from exc


def _bound(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(Request(), *args, **kwargs)

    run.__module__, run.__qualname__, run.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return run


@dataclass(frozen=True)
class SharedTask:
    """A task with Celery's calls. `task` is that of outlive."""

    task: Task[..., Any, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.task.function(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Result:
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Result:
        return Signature(self, tuple(args), kwargs or {}).apply_async(**options)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs, immutable=True)


@dataclass(frozen=True)
class Result:
    """What `AsyncResult` is in Celery. `job` is the handle of outlive."""

    job: Job[Any]

    @property
    def id(self) -> str:
        return str(self.job.id)

    def get(self, timeout: float | None = None) -> Any:
        return self.job.result(timeout)


@dataclass(frozen=True)
class Signature:
    """A call for later. In a chain it gets the result of the one before as its first argument, unless `immutable`."""

    task: SharedTask
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    immutable: bool = False

    def apply_async(self, **options: Any) -> Result:
        return Result(app.enqueue_many([self.after([], **options)])[0])

    def after(self, before: Sequence[BoundJob[Any]], **options: Any) -> BoundJob[Any]:
        """A job of outlive, which follows the one before it, if there is one."""
        if refused := options.keys() - _SENT.keys():
            raise ConfigError(
                f"outlive.celery does not take {min(refused)}: use task.using(…) of outlive for this call"
            )
        using: dict[str, Any] = {_SENT[name]: value for name, value in options.items()}
        if "id" in using:
            using["id"] = UUID(using["id"])
        first = () if self.immutable else tuple(result_of(job) for job in before)
        return self.task.task.using(**using, after=before).job(*first, *self.args, **self.kwargs)


@dataclass(frozen=True)
class Workflow:
    """What `chain` and `group` return: called, it enqueues its jobs in one transaction."""

    steps: tuple[Signature, ...]
    one_by_one: bool

    def __call__(self) -> Any:
        jobs: list[BoundJob[Any]] = []
        for step in self.steps:
            jobs.append(step.after(jobs[-1:] if self.one_by_one else []))
        results = [Result(job) for job in app.enqueue_many(jobs)]
        return results[-1] if self.one_by_one else results

    apply_async = delay = __call__


def chain(*steps: Signature) -> Workflow:
    """These one after the other. Its result is that of the last."""
    return Workflow(steps, one_by_one=True)


def group(steps: Iterable[Signature]) -> Workflow:
    """These side by side. Its result is the list of theirs."""
    return Workflow(tuple(steps), one_by_one=False)
