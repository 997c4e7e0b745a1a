"""A task: a registered function that can be called here, or asked for elsewhere."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast
from uuid import UUID

from psycopg import AsyncConnection, Connection

from outlive import units, wire
from outlive.client.job import Job
from outlive.errors import BadArguments, ConfigError
from outlive.model import JobRequest, new_job_id
from outlive.policy import Duration, OnWorkerDeath, Policy, count, identifier

if TYPE_CHECKING:
    from outlive.client.app import App
    from outlive.client.source import Source

P = ParamSpec("P")
C = TypeVar("C")  # what a plain call gives: the result, or a coroutine
R = TypeVar("R")  # the result
OnConflict = Literal["skip", "raise", "replace"]


class Using(TypedDict, total=False):
    """What one job may have of its own."""

    id: UUID
    queue: str
    source: Source | str
    priority: int
    delay: Duration
    run_at: datetime
    dedupe_key: str
    on_conflict: OnConflict
    connection: Connection[Any] | AsyncConnection[Any]
    max_attempts: int
    max_crashes: int
    max_losses: int | None
    timeout: Duration | None
    stall: Duration
    memory: int | str
    on_worker_death: OnWorkerDeath


@dataclass(frozen=True, slots=True)
class BoundJob(Generic[R]):
    """A job that is asked for but not enqueued: `app.enqueue_many` takes them."""

    request: JobRequest


class Task(Generic[P, C, R]):
    """What `@app.task` makes of a function."""

    def __init__(self, app: App, function: Callable[P, C], policy: Policy, using: Using | None = None) -> None:
        self.app, self.function, self.policy = app, function, policy
        self.name = identifier("task", _name_of(function))
        self._using: Using = using or {}
        self._overrides = _overrides(self._using)
        self._signature = inspect.signature(function)
        functools.update_wrapper(cast("Callable[..., Any]", self), function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run it here and now, as if it were no task."""
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[Using]) -> Task[P, C, R]:
        """The same task with options for the jobs that are enqueued through it."""
        return Task(self.app, self.function, self.policy, {**self._using, **options})

    def job(self, *args: P.args, **kwargs: P.kwargs) -> BoundJob[R]:
        """A job to be enqueued later, with many others."""
        if "connection" in self._using:
            raise ConfigError("a job for enqueue_many has no connection of its own: pass connection= to enqueue_many")
        return BoundJob(self._request(args, kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Ask for a run. When this returns, the job is durable (inside `connection`'s transaction: once it commits)."""
        connection = self._using.get("connection")
        if isinstance(connection, AsyncConnection):
            raise ConfigError(f"{self.name}.enqueue got an async connection: use `await {self.name}.aenqueue(…)`")
        return cast("Job[R]", self.app.enqueue_requests([self._request(args, kwargs)], connection)[0])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The async twin of `enqueue`."""
        connection = self._using.get("connection")
        if isinstance(connection, Connection):
            raise ConfigError(f"{self.name}.aenqueue got a sync connection: use `{self.name}.enqueue(…)`")
        jobs = await self.app.aenqueue_requests([self._request(args, kwargs)], connection)
        return cast("Job[R]", jobs[0])

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobRequest:
        using, source = self._using, self._using.get("source", self.policy.source)
        return JobRequest(
            id=using.get("id") or new_job_id(),
            task=self.name,
            args=self.pack(args, kwargs),
            queue=using.get("queue", self.policy.queue),
            source=source if source is None or isinstance(source, str) else source.name,
            priority=using.get("priority"),
            delay_s=units.seconds(using["delay"]) if "delay" in using else None,
            run_at=using.get("run_at"),
            dedupe_key=using.get("dedupe_key"),
            on_conflict=using.get("on_conflict", "skip"),
            options=wire.encode(self._overrides) if self._overrides else None,
        )

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as JSON: by name wherever a name can be used, so that the same call always looks the same."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadArguments(f"{self.name} can't be called like that: {error}") from None
        positional: list[object] = []
        named: dict[str, object] = {}
        kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        by_position = any(kinds[name] is inspect.Parameter.VAR_POSITIONAL for name in bound)
        for name, value in bound.items():
            match kinds[name]:
                case inspect.Parameter.VAR_POSITIONAL:
                    positional.extend(value)
                case inspect.Parameter.VAR_KEYWORD:
                    named |= value
                case inspect.Parameter.POSITIONAL_ONLY:
                    positional.append(value)
                case inspect.Parameter.POSITIONAL_OR_KEYWORD if by_position:
                    positional.append(value)
                case _:
                    named[name] = value
        try:
            if positional and named:
                return wire.encode({wire.POSITIONAL: positional, **named}, "arguments")
            return wire.encode(positional or named, "arguments")
        except wire.NotJson as error:
            raise BadArguments(f"{self.name} can't be enqueued: {error}") from None


def _overrides(using: Using) -> dict[str, object]:
    """The job's own limits, checked; they travel as `options` in the names that the database knows."""
    options: dict[str, object] = {}
    if "max_attempts" in using:
        options["max_attempts"] = count("max_attempts", using["max_attempts"])
    if "max_crashes" in using:
        options["max_crashes"] = count("max_crashes", using["max_crashes"])
    if "max_losses" in using:
        losses = using["max_losses"]
        options["max_losses"] = None if losses is None else count("max_losses", losses)
    if "timeout" in using:
        timeout = using["timeout"]
        options["timeout_s"] = None if timeout is None else units.seconds(timeout)
    if "stall" in using:
        options["stall_s"] = units.seconds(using["stall"])
    if "memory" in using:
        options["memory_bytes"] = units.size_bytes(using["memory"])
    if "on_worker_death" in using:
        options["on_worker_death"] = using["on_worker_death"]
    _check(using)
    return options


def _check(using: Using) -> None:
    """Refuse what the database would refuse, in words that name the option."""
    if not 0 <= using.get("priority", 5) <= 9:
        raise ConfigError(f"priority is {using['priority']!r}: it is from 0, the most urgent, to 9")
    if "delay" in using and "run_at" in using:
        raise ConfigError("delay and run_at are both given: a job waits for one of them")
    if "run_at" in using and using["run_at"].tzinfo is None:
        raise ConfigError("run_at has no time zone: nobody could tell when it is meant")
    if using.get("on_conflict", "skip") not in ("skip", "raise", "replace"):
        raise ConfigError(f"on_conflict is {using['on_conflict']!r}: it can be skip, raise or replace")
    if using.get("on_worker_death", "retry") not in ("retry", "fail"):
        raise ConfigError(f"on_worker_death is {using['on_worker_death']!r}: it can be retry or fail")
    if "queue" in using:
        identifier("queue", using["queue"])
    if isinstance(source := using.get("source"), str):
        identifier("source", source)
    if (key := using.get("dedupe_key")) is not None and (not 0 < len(key) <= 1000 or "\0" in key):
        raise ConfigError("a dedupe_key has from 1 to 1000 characters, and no NUL")


def _name_of(function: Callable[..., Any]) -> str:
    """module.function; a script that is run directly is the module that a worker would import."""
    module = function.__module__
    if module == "__main__" and (spec := getattr(sys.modules["__main__"], "__spec__", None)) is not None:
        module = spec.name
    elif module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        module = file.rpartition("/")[2].removesuffix(".py")
    return f"{module}.{function.__qualname__}"
