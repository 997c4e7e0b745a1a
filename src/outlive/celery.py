"""Celery's calls on top of outlive, so that a code base moves file by file: change the line of the import first.

    from outlive.celery import app, chain, chord, shared_task    # before: from celery import chain, chord, shared_task

Options that mean something else in outlive are refused, with what to write: docs/how-to/migrate-from-celery.md.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

import outlive
from outlive import foreign_options
from outlive.client import declaring
from outlive.client.app import App
from outlive.client.job import Job, gather
from outlive.client.linking import result_of
from outlive.client.options import BoundJob, JobOptions
from outlive.errors import ConfigError, Retry
from outlive.policy import exponential
from outlive.states import State
from outlive.validation import MAX_COUNT

if TYPE_CHECKING:
    from outlive.client.task import Task  # Not at run time: Celery's Task is another class, and is refused.
else:  # A type checker would take any name for one of this module.

    def __getattr__(name: str) -> object:
        if hint := foreign_options.CELERY_NAMES.get(name):  # No AttributeError: an import would leave its words out.
            raise ImportError(f"outlive.celery has no {name}: {hint}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


app = App()
"""All tasks of `shared_task` are on this app: a module that imports it and them is what `outlive worker` takes."""
Step: TypeAlias = "Signature | Workflow"
Before: TypeAlias = BoundJob[Any] | list[BoundJob[Any]] | None
"""What the step before has made: a job, the jobs of a group, or nothing yet."""
_SENT = {
    "countdown": "delay",
    "eta": "run_at",
    "task_id": "id",
    **{one: one for one in ("expires", "queue", "on_failed")},
}
_STATES = {
    State.RUNNING: "STARTED",
    State.RETRYABLE: "RETRY",
    State.SUCCEEDED: "SUCCESS",
    State.FAILED: "FAILURE",
    State.QUARANTINED: "FAILURE",
    State.CANCELLED: "REVOKED",
}
"""Celery's words; those that are left wait, which is PENDING."""


def route(queue_of: Mapping[str, str | Mapping[str, str]]) -> None:
    """Give tasks that name no queue one by patterns of their names, as `task_routes` does: `{"shop.mail.*": "mail"}`.

    The first pattern that fits counts, and in it `*` stands for anything. It must be called before the tasks are
    declared: in the module that made the Celery app, above the imports of tasks.
    """
    if late := next(iter(app.tasks), None):
        raise ConfigError(f"route was called after the task {late} was declared: call it above the imports of tasks")
    for pattern, to in queue_of.items():
        if not isinstance(to, str) and set(to) != {"queue"}:
            raise ConfigError(f"route gives {pattern} only a queue: name its other options where the task is declared")
    given = {pattern: to if isinstance(to, str) else to["queue"] for pattern, to in queue_of.items()}
    app.queue_of |= declaring.routes(given)


def shared_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A task, as `@shared_task` or `@shared_task(bind=True, max_retries=5, …)`.

    As in Celery, only the exceptions of `autoretry_for` are retried, and `self.retry()`. A time-out is a TimeoutError.
    A job whose worker dies runs again with `acks_late=True`, and one whose process dies with `reject_on_worker_lost`
    too. Options of outlive count more.
    """
    if refused := options.keys() & foreign_options.NOT_SHARED.keys():
        raise ConfigError(f"shared_task does not take {min(refused)}: {foreign_options.NOT_SHARED[min(refused)]}")
    bind, retrying = options.pop("bind", False), options.pop("retry_kwargs", {})
    for name in ("ignore_result", "track_started", *(["retry_jitter"] if options.get("retry_jitter") else [])):
        options.pop(name, None)  # What outlive does anyway.
    retries = retrying.get("max_retries", options.pop("max_retries", 3))
    delay = retrying.get("countdown", options.pop("default_retry_delay", 180))
    ours: dict[str, Any] = {"fail_on": Exception, "backoff": [delay]}
    ours["max_attempts"] = MAX_COUNT if retries is None else retries + 1
    ours["retry_on"] = tuple(options.pop("autoretry_for", ()))
    base, cap = options.pop("retry_backoff", False), options.pop("retry_backoff_max", 600)
    ours |= {"backoff": exponential(float(base), float(cap))} if base else {}
    ours |= {"timeout": limit} if (limit := options.pop("time_limit", None)) else {}
    late, rejected = options.pop("acks_late", False), options.pop("reject_on_worker_lost", False)
    ours |= {} if late else {"on_worker_death": "fail"}
    ours |= {} if late and rejected else {"max_crashes": 1}

    after_s = None if "backoff" in options else delay

    def register(function: Callable[..., Any]) -> SharedTask:
        return SharedTask(app.task(**ours | options)(_bound(function, retries, after_s) if bind else function))

    return register if function is None else register(function)


class Request:
    """`self` of a task with `bind=True`, and its `request`. A task that is called as a function has no id."""

    def __init__(
        self,
        max_retries: int | None,
        default_retry_delay: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`default_retry_delay`: None stands for the backoff of the task."""
        self.request, self.id, self.retries, self.max_retries = self, None, 0, max_retries
        self.default_retry_delay, self.args, self.kwargs = default_retry_delay, list(args), dict(kwargs or {})
        self.hostname = socket.gethostname()
        with suppress(outlive.NoJob):
            self.id, self.retries = str(outlive.current().job_id), outlive.current().attempt - 1

    if not TYPE_CHECKING:
        __getattr__ = foreign_options.hinting("self or self.request of a task")

    def retry(self, exc: BaseException | None = None, countdown: float | None = None, **others: Any) -> Retry:
        """Raise what lets outlive try again, up to `max_retries`."""
        if others:
            raise ConfigError(f"self.retry takes exc and countdown: give {min(others)} to shared_task, or leave it out")
        after_s = self.default_retry_delay if countdown is None else countdown
        raise Retry("" if exc is None else f"{type(exc).__name__}: {exc}", after=after_s) from exc


def _bound(function: Callable[..., Any], retries: int | None, delay: float | None) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(Request(retries, delay, args, kwargs), *args, **kwargs)

    run.__module__, run.__qualname__, run.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return run


@dataclass(frozen=True)
class SharedTask:
    """A task with Celery's calls. `task` is that of outlive."""

    task: Task[..., Any, Any]

    if not TYPE_CHECKING:
        __getattr__ = foreign_options.hinting("a shared task")

    @property
    def name(self) -> str:
        return self.task.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.task.function(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        return self.s(*args, **(kwargs or {})).apply_async(**options)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        return Signature(self, args, kwargs, immutable=True)


@dataclass(frozen=True)
class AsyncResult:
    """A job by its id. `job` is the handle of outlive."""

    id: str

    def __post_init__(self) -> None:
        app.get_job(self.id)  # It refuses what is no id.

    if not TYPE_CHECKING:
        __getattr__ = foreign_options.hinting("a result")

    @property
    def job(self) -> Job[Any]:
        return app.get_job(self.id)

    @property
    def state(self) -> str:
        return _STATES.get(self.job.status(), "PENDING")

    status = state

    def ready(self) -> bool:
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"

    def get(self, timeout: float | None = None, **others: object) -> Any:
        _expect_none(others)
        return self.job.result(timeout)

    def revoke(self, *, terminate: bool = False) -> None:
        if not terminate:
            raise ConfigError("outlive also stops a job that runs: write revoke(terminate=True)")
        self.job.cancel()


def _expect_none(others: Mapping[str, object]) -> None:
    """Refuse the options that only Celery's `get` has."""
    if others:
        caught = "; in place of propagate=False, catch outlive.JobFailed" if "propagate" in others else ""
        raise ConfigError(f"get takes only a timeout: leave out {', '.join(others)}{caught}")


@dataclass(frozen=True)
class GroupResult:
    """The results of a group, in its order."""

    results: list[AsyncResult]

    if not TYPE_CHECKING:
        __getattr__ = foreign_options.hinting("the result of a group")

    def __iter__(self) -> Iterator[AsyncResult]:
        return iter(self.results)

    def get(self, timeout: float | None = None, **others: object) -> list[Any]:
        _expect_none(others)
        return gather([one.job for one in self], timeout)

    join = get

    def ready(self) -> bool:
        return all(one.ready() for one in self)


@dataclass(frozen=True)
class Signature:
    """A call for later. In a chain it gets the result of the step before as its first argument, unless `immutable`."""

    task: SharedTask
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    immutable: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    if not TYPE_CHECKING:
        __getattr__ = foreign_options.hinting("a signature")

    def __or__(self, other: Step) -> Workflow:
        return chain(self, other)

    def set(self, **options: Any) -> Signature:
        return replace(self, options={**self.options, **options})

    def delay(self) -> AsyncResult:
        return self.apply_async()

    def apply_async(self, **options: Any) -> AsyncResult:
        found: AsyncResult = chain(self.set(**options))()
        return found

    def after(self, before: Before) -> BoundJob[Any]:
        """A job of outlive, which follows the ones before it, if there are any."""
        if refused := self.options.keys() - _SENT.keys():
            hint = foreign_options.not_sent(self.task.name.rpartition(".")[2], min(refused), JobOptions.__annotations__)
            raise ConfigError(f"apply_async does not take {min(refused)}: {hint}")
        using: dict[str, Any] = {_SENT[name]: value for name, value in self.options.items()}
        if "id" in using:
            using["id"] = _id(using["id"])
        first = () if self.immutable or before is None else (result_of(before),)
        using |= {"after": before, "on_failure": "cancel"} if before else {}
        return self.task.task.using(**using).job(*first, *self.args, **self.kwargs)


def _id(task_id: str) -> UUID:
    try:
        return UUID(task_id)
    except ValueError:
        once = "to enqueue a job only once, write task.using(dedupe_key=…) with `task` of the shared task"
        raise ConfigError(f"task_id is {task_id!r}, and an id is a UUID: leave it out; {once}") from None


@dataclass(frozen=True)
class Workflow:
    """What `chain` and `group` return: called, it enqueues its jobs in one transaction."""

    steps: tuple[Step, ...]
    one_by_one: bool

    def __or__(self, other: Step) -> Workflow:
        return chain(self, other)

    if not TYPE_CHECKING:
        __getattr__ = foreign_options.hinting("a canvas")

    def __call__(self, **options: Any) -> Any:
        if options:
            raise ConfigError(f"a canvas takes no {min(options)}: {foreign_options.of_canvas(min(options))}")
        jobs, last = _jobs(self, None)
        if last is None:
            raise ConfigError("a chain has at least one signature: give it one")
        handles = {job.request.id: handle for job, handle in zip(jobs, app.enqueue_many(jobs), strict=True)}
        ends = [AsyncResult(str(handles[job.request.id].id)) for job in (last if isinstance(last, list) else [last])]
        return GroupResult(ends) if isinstance(last, list) else ends[0]

    apply_async = delay = __call__


def chain(*steps: Step | Iterable[Step]) -> Workflow:
    """These one after the other. The step after a group gets the list of its results, as the body of a chord does."""
    return Workflow(_given(steps), one_by_one=True)


def group(*steps: Step | Iterable[Step]) -> Workflow:
    """These side by side. Its result is the list of theirs."""
    return Workflow(_given(steps), one_by_one=False)


def chord(header: Iterable[Step], body: Step | None = None) -> Any:
    """These side by side, and then the body with their results: `chord(header)(body)`, or `chord(header, body)()`."""
    first = group(header)
    return (lambda body: chain(first, body)()) if body is None else chain(first, body)


def _given(steps: tuple[Step | Iterable[Step], ...]) -> tuple[Step, ...]:
    """The steps, which Celery takes one by one or as a single iterable."""
    if len(steps) == 1 and not isinstance(steps[0], Signature | Workflow):
        steps = tuple(steps[0])
    return cast("tuple[Step, ...]", steps)


def _jobs(step: Step, before: Before) -> tuple[list[BoundJob[Any]], Before]:
    """The jobs of a step in an order in which they can be enqueued, and those whose results the next step gets."""
    if isinstance(step, Signature):
        job = step.after(before)
        return [job], job
    jobs: list[BoundJob[Any]] = []
    ends: list[BoundJob[Any]] = []
    for one in step.steps:
        more, last = _jobs(one, before)
        jobs += more
        if step.one_by_one:
            before = last
        elif isinstance(last, BoundJob):
            ends.append(last)
        else:
            raise ConfigError("a group in a group is not known: put all signatures into one group")
    return jobs, before if step.one_by_one else ends
