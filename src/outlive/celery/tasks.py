"""Tasks with Celery's options and calls, and what `self` is in them."""

from __future__ import annotations

import functools
import inspect
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

import outlive
from outlive import foreign_options
from outlive.celery.canvas import Signature
from outlive.celery.results import AsyncResult, app
from outlive.child.timer import time_limit
from outlive.client import declaring
from outlive.client.task import Task
from outlive.errors import ConfigError, Retry
from outlive.policy import exponential
from outlive.validation import MAX_COUNT, hinting, known, refused


def route(queue_of: Mapping[str, str | Mapping[str, str]]) -> None:
    """Give tasks that name no queue one by patterns of their names, as `task_routes` does: `{"shop.mail.*": "mail"}`.

    The first pattern that fits counts, and in it `*` stands for anything. It must be called before the tasks are
    declared: in the module that made the Celery app, above the imports of tasks.
    """
    if not isinstance(queue_of, Mapping):
        raise refused("what route takes", queue_of, 'a dict of patterns and queues: route({"shop.mail.*": "mail"})')
    if late := next(iter(app.tasks), None):
        raise ConfigError(f"route was called after the task {late} was declared: call it above the imports of tasks")
    for pattern, to in queue_of.items():
        known(f"route for {pattern}", "option", () if isinstance(to, str) else to, ("queue",))
    given = {pattern: to if isinstance(to, str) else to["queue"] for pattern, to in queue_of.items()}
    app.queue_of |= declaring.routes(given)


class SoftTimeLimitExceeded(Exception):
    """The `soft_time_limit` of a task is over. The task may catch this, and what it returns then is its result."""


_TAKEN = (
    *("bind", "max_retries", "default_retry_delay", "autoretry_for", "retry_kwargs", "retry_backoff", "retry_jitter"),
    *("retry_backoff_max", "time_limit", "soft_time_limit", "acks_late", "reject_on_worker_lost", "ignore_result"),
    *("track_started", *declaring.TaskOptions.__annotations__),
)
"""What `shared_task` has an option for."""


def shared_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A task, as `@shared_task` or `@shared_task(bind=True, max_retries=5, …)`.

    As in Celery, only the exceptions of `autoretry_for` are retried, and `self.retry()`. A time-out is a TimeoutError.
    A job whose worker dies runs again with `acks_late=True`, and one whose process dies with `reject_on_worker_lost`
    too. Options of outlive count more.
    """
    if others := options.keys() & foreign_options.NOT_SHARED.keys():
        raise ConfigError(f"shared_task does not take {min(others)}: {foreign_options.NOT_SHARED[min(others)]}")
    known("shared_task", "option", options, [one for one in _TAKEN if one != "retry_jitter" or options.get(one)])
    bind, retrying = options.pop("bind", False), options.pop("retry_kwargs", {})
    ignoring = options.pop("ignore_result", False)
    for name in ("track_started", "retry_jitter"):
        options.pop(name, None)  # What outlive does anyway.
    retries = retrying.get("max_retries", options.pop("max_retries", 3))
    retries = options["max_attempts"] - 1 if "max_attempts" in options else retries
    delay = retrying.get("countdown", options.pop("default_retry_delay", 180))
    ours: dict[str, Any] = {"fail_on": BaseException, "backoff": [delay]}
    ours["max_attempts"] = MAX_COUNT if retries is None else retries + 1
    ours["retry_on"] = tuple(options.pop("autoretry_for", ()))
    base, cap = options.pop("retry_backoff", False), options.pop("retry_backoff_max", 600)
    ours |= {"backoff": exponential(float(base), float(cap))} if base else {}
    ours |= {"timeout": limit} if (limit := options.pop("time_limit", None)) else {}
    soft_s = options.pop("soft_time_limit", None)
    late, rejected = options.pop("acks_late", False), options.pop("reject_on_worker_lost", False)
    ours |= {} if late else {"on_worker_death": "fail"}
    ours |= {} if late and rejected else {"max_crashes": 1}

    after_s = None if "backoff" in options else delay

    def register(function: Callable[..., Any]) -> SharedTask:
        own_name = options.get("name") or declaring.name_of(function)
        called = _bound(function, own_name, retries, after_s) if bind else function
        called = _limited(called, soft_s) if soft_s else called
        run = called
        if ignoring:
            run = _returning(called, lambda _: None)
        elif inspect.signature(function).return_annotation is inspect.Signature.empty:
            run = _returning(called, _plain)
        return SharedTask(app.task(**ours | options)(run), called)

    return register if function is None else register(function)


class Request:
    """`self` of a task with `bind=True`, and its `request`. A task that is called as a function has no id."""

    def __init__(
        self,
        max_retries: int | None,
        default_retry_delay: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> None:
        """`default_retry_delay`: None stands for the backoff of the task."""
        self.name = self.task = name
        self.request, self.id, self.retries, self.max_retries = self, None, 0, max_retries
        self.default_retry_delay, self.args, self.kwargs = default_retry_delay, list(args), dict(kwargs or {})
        self.hostname = socket.gethostname()
        with suppress(outlive.NoJob):
            self.id, self.retries = str(outlive.current().job_id), outlive.current().failures

    if not TYPE_CHECKING:
        __getattr__ = hinting("self or self.request of a task")

    def retry(
        self,
        exc: BaseException | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **others: Any,
    ) -> Retry:
        """Raise what lets outlive try again. After `max_retries` of them, that of the task or fewer, raise `exc`, or
        what is being handled."""
        if others:
            taken = "self.retry takes exc, countdown and max_retries"
            raise ConfigError(f"{taken}: give {min(others)} to shared_task, or leave it out")
        own, error = self.max_retries, exc or sys.exception()
        if own is not None and max_retries is not None and max_retries > own:
            raise ConfigError(f"self.retry has max_retries={max_retries}, more than its task: give that to shared_task")
        most = own if max_retries is None else max_retries
        if most is not None and self.retries >= most:
            raise error or outlive.OutliveError(f"no try is left: max_retries is {most}")
        after_s = self.default_retry_delay if countdown is None else countdown
        raise Retry("" if error is None else f"{type(error).__name__}: {error}", after=after_s) from error


def _bound(function: Callable[..., Any], name: str, retries: int | None, delay: float | None) -> Callable[..., Any]:
    own = inspect.signature(function)
    rest = own.replace(parameters=list(own.parameters.values())[1:])

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = rest.bind(*args, **kwargs)
        return function(Request(retries, delay, given.args, given.kwargs, name), *args, **kwargs)

    vars(run)["__signature__"] = rest  # By which outlive checks the arguments of a call.
    return run


def _limited(function: Callable[..., Any], soft_s: float) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        raise ConfigError("soft_time_limit is not for an async def: write `async with asyncio.timeout(…):` in it")

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with time_limit(soft_s, "the task", SoftTimeLimitExceeded) if _in_job() else nullcontext():
            return function(*args, **kwargs)

    return run


def _returning(function: Callable[..., Any], stored: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with another result: what is stored of its own."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return stored(function(*args, **kwargs))

    @functools.wraps(function)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        return stored(await function(*args, **kwargs))

    found = wait if inspect.iscoroutinefunction(function) else run
    vars(found)["__signature__"] = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    return found


def _plain(result: Any) -> Any:
    """A result without an annotation, as Celery's JSON has it: a tuple is a list, a time or a UUID a text."""
    try:
        return json.loads(json.dumps(msgspec.to_builtins(result, builtin_types=(bytes,), str_keys=True)))
    except (TypeError, ValueError):  # The job fails with a sentence about it.
        return result


def _in_job() -> bool:
    try:
        return bool(outlive.current())
    except outlive.NoJob:
        return False


@dataclass(eq=False)
class SharedTask:
    """A task with Celery's calls. `task` is that of outlive, and `plain` its function if that returns something else
    than is stored."""

    task: Task[..., Any, Any]
    plain: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), self.task.function, updated=())

    if not TYPE_CHECKING:
        __getattr__ = hinting("a shared task")

    @property
    def name(self) -> str:
        return self.task.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.plain or self.task.function)(*args, **kwargs)

    run = __call__

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        return self.s(*args, **(kwargs or {})).apply_async(**options)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """In Django: enqueue the job when the transaction commits."""
        from django.db import transaction

        transaction.on_commit(self.s(*args, **(kwargs or {})).set(**options).delay)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs, immutable=True)
