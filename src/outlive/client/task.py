"""A task: a registered function. It can be called here like any function, or enqueued to run in a worker.

`@app.task` (app.py) makes it:

    @app.task(timeout="10m")
    def fetch(url: str) -> int: ...

    fetch(url)                            # calls the function, here and now
    fetch.enqueue(url)                    # a worker calls it, soon
    fetch.using(delay="1h").enqueue(url)  # with options for this job
    fetch.job(url)                        # for app.enqueue_many and ctx.spawn
    fetch.using(after=job).enqueue(url)   # when that job has succeeded
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast
from uuid import UUID

from outlive import wire
from outlive.arguments import Codec
from outlive.client.job import Job
from outlive.client.options import FIELDS, LINKS, BoundJob, JobOptions, OnFailed, ids_of, waiting_for
from outlive.errors import BadArguments, ConfigError
from outlive.model import JobRequest, as_json, new_job_id
from outlive.policy import DEFAULT_QUEUE, LIMITS, Checks, Policy, parse
from outlive.validation import hinting, identifier, known, refused

if TYPE_CHECKING:
    from outlive.client.app import App

P = ParamSpec("P")
C = TypeVar("C")  # what a call of the function returns: the result, or a coroutine
R = TypeVar("R")  # the result


class Task(Generic[P, C, R]):
    """A function under `@app.task`, with parameters P. A call returns C; the job's result is R."""

    def __init__(
        self, app: App, function: Callable[P, C], policy: Policy, name: str, was: tuple[str, ...] = ()
    ) -> None:
        self.app, self.function, self.policy = app, function, policy
        self.name, self.was = identifier("the name of a task", name), was
        self._options: JobOptions = {}
        self._fields = _fields(policy, self._options)
        """What each of its requests says besides id, task and arguments."""
        self.codec = Codec(self.name, function)
        # Without the function's attributes, which could hide this object's own.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    if not TYPE_CHECKING:  # A type checker would take any name for an attribute.
        __getattr__ = hinting("a task")

    @property
    def surroundings(self) -> Sequence[FunctionType]:
        """What runs around each of its jobs."""
        return self.app.surroundings

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[JobOptions]) -> Task[P, C, R]:
        """The same task, with options for the jobs enqueued through it."""
        if "after" in options:
            options["after"] = ids_of("after", options["after"])  # It may be an iterator, which can be read once.
        given: JobOptions = {**self._options, **options}  # All are checked: delay and run_at may come from two calls.
        known("using", "option", given, JobOptions.__annotations__)
        if not isinstance(given.get("id"), UUID | None):
            raise refused("id", given.get("id"), "a uuid.UUID")
        if "delay" in given and "run_at" in given:
            raise ConfigError("delay and run_at are both given: give only one of them")
        if "concurrency" in given and given.get("concurrency_key") is None:
            raise ConfigError("concurrency is given without a concurrency_key: give the key whose jobs it limits")
        other = copy.copy(self)
        other._options, other._fields = given, _fields(self.policy, given)
        return other

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundJob[R]:
        """A job to enqueue later, together with others."""
        if "connection" in self._options:
            raise ConfigError("a job for enqueue_many has no connection of its own: pass connection= to enqueue_many")
        return self._bound(args, kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job. It is durable when this returns, or when the transaction of `connection` commits."""
        connection: Any = self._options.get("connection")
        return self.app.enqueue_many([self._bound(args, kwargs)], connection=connection)[0]

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The async twin of `enqueue`."""
        connection: Any = self._options.get("connection")
        return (await self.app.aenqueue_many([self._bound(args, kwargs)], connection=connection))[0]

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundJob[R]:
        id = self._options.get("id") or new_job_id()
        after: Any = self._options.get("after", ())  # `using` has made ids of them.
        needed: list[UUID] = [*after]
        request = JobRequest(id=id, task=self.name, args=self.codec.pack(args, kwargs, needed), **self._fields)
        bound: BoundJob[R] = BoundJob(self.app, request)
        return waiting_for(more, bound) if (more := needed[len(after) :]) else bound


def _fields(policy: Policy, given: JobOptions) -> dict[str, Any]:
    """The fields of a request that come from the task's policy and from the options of one job, which override it."""
    limits = parse(given, LIMITS)  # Without those of the policy: the database has them.
    links = {"expires_s": policy.expires_s, "deadline_s": policy.deadline_s} | parse(given, _LINKS)
    links = {name: value for name, value in links.items() if value is not None}
    return {
        "queue": policy.queue or DEFAULT_QUEUE,
        "source": policy.source or "",
        "priority": policy.priority,
        **parse(given, FIELDS),
        "options": wire.encode(limits) if limits else None,
        "links": wire.encode(links) if links else None,
    }


class DjangoTask(Protocol):
    """A task of Django."""

    @property
    def module_path(self) -> str: ...


def own_task(given: object) -> Any:
    """Refuse a task of Django, which only the app of a backend has. Anything else as it is."""
    if path := getattr(given, "module_path", None):
        raise ConfigError(f"{path} is a task of Django: give its name, {path!r}, or use the app outlive.django.app()")
    return given


def expect_task(words: str, task: Task[P, C, R]) -> Task[P, C, R]:
    """The task itself. ConfigError if it is something else, such as a plain function."""
    task = getattr(task, "task", task)  # That of a shared task of outlive.celery.
    if not isinstance(task, Task):
        raise ConfigError(f"{words} a task, which is a function with @app.task, not {task!r}")
    return task


def follower(task: OnFailed, app: App | None = None) -> dict[str, Any]:
    """The job of `on_failed`, as the database takes it. Its id and arguments come when the other one has failed.

    ConfigError if it is no task of `app`, if that is given: no worker of that app would run it.
    """
    found: Task[..., Any, Any] = expect_task("on_failed takes", cast("Any", task))
    if app is not None and found.app is not app:
        raise ConfigError(f"{found.name} is not a task of this app: put @app.on_failed above its @app.task")
    if given := found._options.keys() & {"id", "dedupe_key", *_LINKS}:
        raise ConfigError(f"on_failed takes a task without {min(given)}: its job is made when the other one has failed")
    try:
        try:
            request = found.job(UUID(int=0), "").request
        except BadArguments:  # It may take the id as text, as one without annotations does.
            request = found.job(str(UUID(int=0)), "").request
    except BadArguments as error:
        takes = "on_failed takes a task with two parameters, the id of the failed job and its error"
        raise BadArguments(f"{takes}, as in `def tell(job: UUID, error: str)`: {error}") from None
    fields = cast("dict[str, Any]", wire.decode(as_json(request)))
    return {name: value for name, value in fields.items() if name not in ("id", "args", "links")}


_LINKS: Checks = {**LINKS, "on_failed": ("on_failed", lambda _, value: follower(value))}
