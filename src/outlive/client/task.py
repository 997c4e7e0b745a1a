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
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from outlive import wire
from outlive.arguments import Codec
from outlive.client.batch import Batch, batch_id
from outlive.client.job import Job, gather
from outlive.client.source import Source, source_name
from outlive.errors import BadArguments, ConfigError
from outlive.model import JobRequest, as_json, new_job_id
from outlive.policy import DEFAULT_QUEUE, LIMITS, Checks, LimitOptions, Policy, parse, parse_priority
from outlive.validation import Duration, choice, count, identifier, known, optional, positive, refused, seconds

if TYPE_CHECKING:
    from outlive.caller_connections import AnyConnection
    from outlive.client.app import App

P = ParamSpec("P")
C = TypeVar("C")  # what a call of the function returns: the result, or a coroutine
R = TypeVar("R")  # the result
OnConflict = Literal["skip", "raise", "replace"]
OnFailure = Literal["block", "proceed", "cancel"]


class JobOptions(LimitOptions, total=False):
    """The options of one job. Its limits (policy.py), queue and source override those of its task."""

    id: UUID
    """The job's own id. Enqueuing the same id again makes no second job."""
    queue: str
    """The queue of this job, in place of its task's."""
    source: Source | str
    """The service that the job calls: it waits until the source's limits admit it."""
    priority: int
    """From 0, the most urgent, to 9; 5 if it is not given."""
    delay: Duration
    """How long the job waits at least, in seconds or as text ("10m")."""
    run_at: datetime
    """When the job may run, with a time zone. Only one of `delay` and `run_at` can be given."""
    dedupe_key: str
    """While a job of this task with this key is not finished, `on_conflict` says what becomes of another one."""
    concurrency_key: str | None
    """At most `concurrency` jobs with this key run at a time, whatever their task and queue."""
    concurrency: int
    """How many jobs with the `concurrency_key` may run when this one starts, itself included; 1 if it is not given."""
    on_conflict: OnConflict
    """skip, the default: `enqueue` returns the job that is there. raise: it raises. replace: the new one takes over."""
    after: Needed | Iterable[Needed]
    """The jobs that must succeed before this one starts. Their results are its `outlive.current().inputs`. A job waits
    for those to whose results its arguments refer (`outlive.result_of`) without this."""
    on_failure: OnFailure
    """If one of them ends without success: block, the default: this one waits until that one is retried and succeeds,
    or an operator releases this one. proceed: this one no longer waits for it. cancel: this one is cancelled too."""
    on_failed: OnFailed
    """A task whose job is enqueued with the id of this one and its error, if this one fails for good or is quarantined.
    That happens in the same transaction, and once."""
    expires: Duration | None
    """How long after it was enqueued the job may start. Then it is cancelled, and so is its next retry. None: for ever,
    whatever its task says."""
    batch: Batch | UUID | None
    """The batch that the job belongs to."""
    connection: AnyConnection
    """Enqueue in this connection's transaction: the job exists if that commits."""


class BoundJob(msgspec.Struct, Generic[R], frozen=True):
    """A job that is not enqueued yet: `app.enqueue_many` and `ctx.spawn` take it."""

    app: App
    request: JobRequest

    def results(self, ids: list[UUID]) -> list[R]:
        """The results of jobs of its task that have ended. TimeoutError if one of them is unfinished."""
        return gather([Job(id, self.app) for id in ids], timeout=0.0)


class OnFailed(Protocol):
    """A task that takes the id of a failed job, and its error."""

    def job(self, job: UUID, error: str, /) -> BoundJob[Any]: ...


Needed: TypeAlias = "Job[Any] | BoundJob[Any] | UUID"
"""A job that another one can wait for."""


class Task(Generic[P, C, R]):
    """A function under `@app.task`, with parameters P. A call returns C; the job's result is R."""

    def __init__(
        self, app: App, function: Callable[P, C], policy: Policy, name: str, was: tuple[str, ...] = ()
    ) -> None:
        self.app, self.function, self.policy = app, function, policy
        self.name, self.was = identifier("the name of a task", name), was
        self._options: JobOptions = {}
        self._links: dict[str, Any] = {} if policy.expires_s is None else {"expires_s": policy.expires_s}
        self._fields: dict[str, Any] = {"queue": policy.queue or DEFAULT_QUEUE, "source": policy.source or ""}
        if policy.priority is not None:
            self._fields["priority"] = policy.priority
        """What each of its requests says besides id, task and arguments."""
        if self._links:
            self._fields["links"] = wire.encode(self._links)
        self.codec = Codec(self.name, function)
        # Without the function's attributes, which could hide this object's own.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    if not TYPE_CHECKING:  # A type checker would take any name for an attribute.

        def __getattr__(self, name: str) -> object:
            from outlive import foreign_options  # Not at the top: only an error needs it.

            raise foreign_options.missing("a task", self, name)

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
        limits = parse(given, LIMITS)
        links = self._links | {name: value for name, value in parse(given, _LINKS).items() if value is not None}
        other = copy.copy(self)
        other._options = given
        other._fields = self._fields | parse(given, _FIELDS)
        if limits:
            other._fields["options"] = wire.encode(limits)  # Only the limits that are given for this job.
        other._fields["links"] = wire.encode(links) if links else None
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
        given: Any = self._options.get("after", ())
        after: list[UUID] = [*given]
        request = JobRequest(id=id, task=self.name, args=self.codec.pack(args, kwargs, after), **self._fields)
        bound: BoundJob[R] = BoundJob(self.app, request)
        return waiting_for(after[len(given) :], bound) if len(after) > len(given) else bound


def expect_task(words: str, task: Task[P, C, R]) -> Task[P, C, R]:
    """The task itself. ConfigError if it is something else, such as a plain function."""
    if not isinstance(task, Task):
        raise ConfigError(f"{words} a task, which is a function with @app.task, not {task!r}")
    return task


def moment(name: str, value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise refused(name, value, "a datetime with a time zone")
    return value


def _key(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode(errors="surrogatepass")) <= 1000:
        raise refused(name, value, "text of 1 to 1000 bytes")
    try:
        wire.encode(value, name)  # It refuses what Postgres can't store.
    except wire.NotJson as error:
        raise ConfigError(str(error)) from None
    return value


def ids_of(name: str, value: Needed | Iterable[Needed]) -> list[UUID]:
    """The ids of one job or of several."""
    ids = []
    for one in value if isinstance(value, Iterable) else [value]:
        job = one.request if isinstance(one, BoundJob) else one
        id = job if isinstance(job, UUID) else getattr(job, "id", None)
        if not isinstance(id, UUID):
            raise refused(name, one, "a job, a task.job(…) or a uuid.UUID, or a list of these")
        ids.append(id)
    return ids


def follower(task: OnFailed) -> dict[str, Any]:
    """The job of `on_failed`, as the database takes it. Its id and arguments come when the other one has failed."""
    found: Task[..., Any, Any] = expect_task("on_failed takes", cast("Any", task))
    if given := found._options.keys() & {"id", "dedupe_key", *_LINKS}:
        raise ConfigError(f"on_failed takes a task without {min(given)}: its job is made when the other one has failed")
    try:
        request = found.job(UUID(int=0), "").request
    except BadArguments as error:
        takes = "on_failed takes a task with two parameters, the id of the failed job (a UUID) and its error (text)"
        raise BadArguments(f"{takes}: {error}") from None
    fields = cast("dict[str, Any]", wire.decode(as_json(request)))
    return {name: value for name, value in fields.items() if name not in ("id", "args", "links")}


def waiting_for(ids: Iterable[UUID], job: BoundJob[R], on_failure: OnFailure | None = None) -> BoundJob[R]:
    """The job, which waits for these too, after those that it already waits for."""
    links = cast("dict[str, Any]", wire.decode(job.request.links or b"{}"))
    links["after"] = [*links.get("after", ()), *map(str, ids)]
    if on_failure is not None:
        links["on_failure"] = choice("on_failure", on_failure, "block", "proceed", "cancel")
    return BoundJob(job.app, replace(job.request, links=wire.encode(links)))


_FIELDS: Checks = {
    "queue": ("queue", identifier),
    "source": ("source", lambda _, value: source_name(value)),
    "priority": ("priority", parse_priority),
    "delay": ("delay_s", seconds),
    "run_at": ("run_at", moment),
    "dedupe_key": ("dedupe_key", optional(_key)),
    "on_conflict": ("on_conflict", lambda name, value: choice(name, value, "skip", "raise", "replace")),
}
"""For each option of a job, its name in `JobRequest` and its check."""
_LINKS: Checks = {
    "after": ("after", lambda name, value: [str(one) for one in ids_of(name, value)]),
    "on_failure": ("on_failure", lambda name, value: choice(name, value, "block", "proceed", "cancel")),
    "batch": ("batch", optional(batch_id)),
    "concurrency_key": ("key", optional(_key)),
    "concurrency": ("concurrency", lambda name, value: count(name, value, most=1000)),
    "on_failed": ("on_failed", lambda _, value: follower(value)),
    "expires": ("expires_s", lambda name, value: 0 if value is None else positive(name, seconds(name, value))),
}
"""The same for `JobRequest.links`: the options that connect a job with others."""
