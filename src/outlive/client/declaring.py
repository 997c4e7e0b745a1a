"""Tasks as an app declares them: the options of `@app.task`, and what becomes of a function under it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from outlive import policy, validation
from outlive.client.source import Source, source_name
from outlive.client.task import Task
from outlive.errors import ConfigError
from outlive.validation import Duration

if TYPE_CHECKING:
    from outlive.client.app import App

P = ParamSpec("P")
R = TypeVar("R")
PLAIN, GENERATOR, ASYNC_GENERATOR = 0, inspect.CO_GENERATOR, inspect.CO_ASYNC_GENERATOR
_KINDS = GENERATOR | inspect.CO_COROUTINE | ASYNC_GENERATOR


class TaskOptions(policy.LimitOptions, total=False):
    """The options of `@app.task`."""

    name: str
    """The name of the task; that of its module and function if it is not given. Names are one space for a database."""
    was: str | Sequence[str]
    """Names that the task had before: jobs and schedules that still have them are this task's."""
    queue: str
    """The queue of its jobs; if it is not given, what `queue_of` of the app says, or "default"."""
    priority: int
    """The priority of its jobs, from 0, the most urgent, to 9; 5 if it is not given."""
    recycle_after: policy.RecycleAfter
    """How many jobs a process of this task runs; "clean": as many as leave it as it was before its first one."""
    preload: bool
    """False: each job gets a new interpreter, which imports the app itself, in place of a fork."""
    share: int
    """How many jobs of this task, an `async def`, run at once in one process, which takes one slot."""
    needs: str | Sequence[str]
    """The labels that a worker must have, all of them, to run its jobs: `outlive worker … --label gpu`."""
    source: Source | str
    """The outside service that its jobs call: a worker claims them only while the source's limits admit them."""
    backoff: policy.Backoff
    """The pause before a retry: a base that doubles each time, a list, or a function of the number of failures. It is
    shortened at random by up to half."""
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    """Exceptions that are retried although `fail_on` names them or a base of them."""
    fail_on: type[BaseException] | tuple[type[BaseException], ...]
    """Exceptions that fail the job at once. Every other exception is retried, up to `max_attempts`. A time-out or
    a stall counts as a TimeoutError."""
    quarantine_by: policy.QuarantineBy
    """What crashes are counted for: job, the default, or fingerprint, all jobs with the same task and arguments."""
    keep_finished: Duration
    """How long succeeded and cancelled jobs are kept, with their results, in place of what the settings say."""
    expires: Duration
    """How long after it was enqueued a job may start. Then it is cancelled, and so is its next retry."""
    deadline: Duration
    """How long after it was enqueued a job must have ended. Then it is cancelled, whether it waits, runs or is
    suspended. `timeout` limits one attempt."""


OPTIONS: policy.Checks = {
    "name": ("name", validation.identifier),
    "was": ("was", validation.identifiers),
    "queue": ("queue", validation.identifier),
    "priority": ("priority", policy.parse_priority),
    **policy.LIMITS,
    "recycle_after": ("recycle_after", policy.parse_recycle_after),
    "preload": ("preload", validation.flag),
    "share": ("share", lambda name, value: validation.count(name, value, most=policy.MAX_SHARE)),
    "needs": ("needs", validation.identifiers),
    "source": ("source", lambda _, value: source_name(value)),
    "backoff": ("backoff_s", lambda _, value: policy.parse_backoff(value)),
    "retry_on": ("retry_on", validation.exceptions),
    "fail_on": ("fail_on", validation.exceptions),
    "quarantine_by": ("quarantine_by", lambda name, value: validation.choice(name, value, "job", "fingerprint")),
    "keep_finished": ("keep_finished_s", validation.seconds),
    "expires": ("expires_s", lambda name, value: validation.positive(name, validation.seconds(name, value))),
    "deadline": ("deadline_s", lambda name, value: validation.positive(name, validation.seconds(name, value))),
}


class Decorator(Protocol):
    """What `@app.task(…)` returns. A task keeps the parameters of its function; its result is the awaited one."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


def decorator(app: App, options: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Task[..., Any, Any]]:
    """Check the options, and return what registers a function as a task."""
    validation.known("@app.task", "option", options, OPTIONS)
    parsed = policy.parse(options, OPTIONS)
    own_name, was = parsed.pop("name", None), parsed.pop("was", ())

    def register(function: Callable[..., Any]) -> Task[..., Any, Any]:
        _check(function, parsed)
        name = own_name or name_of(function)
        routed = (queue for pattern, queue in app.queue_of.items() if fnmatchcase(name, pattern))
        queue = parsed.get("queue") or next(routed, None)
        task: Task[..., Any, Any] = Task(app, function, policy.Policy(**parsed | {"queue": queue}), name, was)
        for one in (name, *was):
            if app.tasks.get(one, task).function is not function:
                raise ConfigError(f"two tasks are named {one}: give one of them another name with name=…")
        app.tasks |= dict.fromkeys((name, *was), task)
        return task

    return register


def expect(function: Callable[[], object], kind: int, rule: str) -> FunctionType:
    """The function itself. ConfigError if it is of another kind, by the flags of its code, or has parameters."""
    try:
        inspect.signature(function).bind()
        fits = inspect.isfunction(function) and function.__code__.co_flags & _KINDS == kind
    except (TypeError, ValueError):  # It has parameters, or is no function at all.
        fits = False
    if not fits:
        raise ConfigError(f"{rule}, not {function!r}")
    return cast("FunctionType", function)


def routes(queue_of: Mapping[str, str]) -> dict[str, str]:
    """The queues by patterns of the names of tasks, checked."""
    return {
        validation.identifier("a pattern of queue_of", pattern): validation.identifier("a queue of queue_of", queue)
        for pattern, queue in queue_of.items()
    }


def _check(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse what a worker could not run."""
    if not inspect.isfunction(function):
        raise ConfigError(f"{function!r} is not a function: put @app.task on a function of a module")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = f"{function.__qualname__} is a generator, and a call of it runs nothing"
        raise ConfigError(f"{what}: return a list, or enqueue a job for each")
    if options.get("share", 1) == 1:
        return
    what = f"{function.__qualname__} can't have share={options['share']}"
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"{what}: it is a plain function, which would keep the others of its process from running until it"
            " returns. Write `async def` and await what it waits for, or leave `share` out"
        )
    recycle_after = options.get("recycle_after", options["share"])
    if recycle_after == "clean" or recycle_after < options["share"]:
        raise ConfigError(f"{what} with recycle_after={recycle_after!r}: give it a number that is at least as large")
    if not options.get("preload", True):
        raise ConfigError(f"{what} with preload=False: jobs with an interpreter of their own share nothing")


def name_of(function: Callable[..., Any]) -> str:
    """module.function. A script that is run directly has the name under which a worker imports it.

    Where multiprocessing does not fork, it imports the script again as __mp_main__.
    """
    if "<" in function.__qualname__:  # <lambda> or <locals>.
        raise ConfigError(
            f"{function.__qualname__} has no name in its module, where a worker looks for it: define it there with "
            "def, or give it a name=… of its own, if it is declared whenever the module is imported"
        )
    module = function.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        if (spec := getattr(main, "__spec__", None)) is not None:
            module = spec.name
        elif file := getattr(main, "__file__", None):
            module = Path(file).stem
    return f"{module}.{function.__qualname__}"
