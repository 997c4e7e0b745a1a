"""A task: a registered function that can be called here, or asked for elsewhere."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast
from uuid import UUID

from outlive import wire
from outlive.client.job import Job
from outlive.client.source import Source, source_name
from outlive.errors import BadArguments, ConfigError
from outlive.model import JobRequest, new_job_id
from outlive.policy import DEFAULT_QUEUE, Duration, OnWorkerDeath, Policy, count, identifier, known, parse_limits, word
from outlive.units import seconds

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from outlive.client.app import App

P = ParamSpec("P")
C = TypeVar("C")  # what a plain call gives: the result, or a coroutine
R = TypeVar("R")  # the result
OnConflict = Literal["skip", "raise", "replace"]
NAMED = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


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
    """A job that is asked for but not enqueued: `app.enqueue_many` takes them, and `ctx.spawn`."""

    app: App
    request: JobRequest


class Task(Generic[P, C, R]):
    """What `@app.task` makes of a function."""

    def __init__(self, app: App, function: Callable[P, C], policy: Policy) -> None:
        self.app, self.function, self.policy = app, function, policy
        self.name = identifier("task", _name_of(function))
        self._using: Using = {}
        self._options: bytes | None = None
        self._signature = inspect.signature(function)
        self._kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        self._all_named = set(self._kinds.values()) <= NAMED
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run it here and now, as if it were no task."""
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[Using]) -> Task[P, C, R]:
        """The same task with options for the jobs that are enqueued through it."""
        using: Using = {**self._using, **options}
        _check(using)
        limits = parse_limits(using)
        other = copy.copy(self)
        other._using, other._options = using, wire.encode(limits) if limits else None
        return other

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundJob[R]:
        """A job to be enqueued later, with many others."""
        if "connection" in self._using:
            raise ConfigError("a job for enqueue_many has no connection of its own: pass connection= to enqueue_many")
        return BoundJob(self.app, self._request(args, kwargs))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Ask for a run. When this returns, the job is durable (inside `connection`'s transaction: once it commits)."""
        connection = cast("Connection[Any] | None", self._using.get("connection"))
        return self.app.enqueue_requests([self._request(args, kwargs)], connection)[0]

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The async twin of `enqueue`."""
        connection = cast("AsyncConnection[Any] | None", self._using.get("connection"))
        return (await self.app.aenqueue_requests([self._request(args, kwargs)], connection))[0]

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobRequest:
        using = self._using
        return JobRequest(
            id=using.get("id") or new_job_id(),
            task=self.name,
            args=self.pack(args, kwargs),
            queue=using.get("queue", self.policy.queue or DEFAULT_QUEUE),
            source=source_name(using["source"]) if "source" in using else self.policy.source or "",
            priority=using.get("priority"),
            delay_s=seconds(using["delay"]) if "delay" in using else None,
            run_at=using.get("run_at"),
            dedupe_key=using.get("dedupe_key"),
            on_conflict=using.get("on_conflict", "skip"),
            options=self._options,
        )

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as JSON: by name wherever a name can be used, so that the same call always looks the same."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadArguments(f"{self.name} can't be called like that: {error}") from None
        try:
            return wire.encode(bound if self._all_named else self._sorted_out(bound), "arguments")
        except wire.NotJson as error:
            raise BadArguments(f"{self.name} can't be enqueued: {error}") from None

    def _sorted_out(self, bound: dict[str, Any]) -> object:
        """Arguments of a function some of whose parameters have no name to be passed by."""
        positional: list[object] = []
        named: dict[str, object] = {}
        by_position = any(self._kinds[name] is inspect.Parameter.VAR_POSITIONAL for name in bound)
        for name, value in bound.items():
            match self._kinds[name]:
                case inspect.Parameter.VAR_POSITIONAL:
                    positional.extend(value)
                case inspect.Parameter.VAR_KEYWORD if wire.POSITIONAL in value:
                    raise BadArguments(f"{self.name} can't be enqueued: no argument can be named {wire.POSITIONAL}")
                case inspect.Parameter.VAR_KEYWORD:
                    named |= value
                case inspect.Parameter.POSITIONAL_ONLY:
                    positional.append(value)
                case inspect.Parameter.POSITIONAL_OR_KEYWORD if by_position:
                    positional.append(value)
                case _:
                    named[name] = value
        return {wire.POSITIONAL: positional, **named} if positional and named else positional or named


def _check(using: Using) -> None:
    """Refuse what the database would refuse, in words that name the option."""
    known("using", using, Using.__annotations__)
    if not isinstance(id := using.get("id"), UUID | None):
        raise ConfigError(f"id is {id!r}: it must be a uuid.UUID")
    if "priority" in using:
        count("priority", using["priority"], least=0, most=9)
    if "delay" in using and "run_at" in using:
        raise ConfigError("delay and run_at are both given: a job waits for one of them")
    if "delay" in using:
        seconds(using["delay"])
    if "run_at" in using and (not isinstance(using["run_at"], datetime) or using["run_at"].tzinfo is None):
        raise ConfigError(f"run_at is {using['run_at']!r}: it must be a datetime with a time zone")
    word("on_conflict", using.get("on_conflict", "skip"), "skip", "raise", "replace")
    if "queue" in using:
        identifier("queue", using["queue"])
    if "source" in using:
        source_name(using["source"])
    if (key := using.get("dedupe_key")) is not None:
        _check_dedupe_key(key)


def _check_dedupe_key(key: object) -> None:
    if not isinstance(key, str) or not 0 < len(key.encode(errors="surrogatepass")) <= 1000:
        raise ConfigError(f"dedupe_key is {key!r:.100}: it must be text of 1 to 1000 bytes")
    try:
        wire.encode(key, "dedupe_key")
    except wire.NotJson as error:
        raise ConfigError(str(error)) from None


def _name_of(function: Callable[..., Any]) -> str:
    """module.function; a script that is run directly is the module that a worker would import.

    multiprocessing imports the script again as __mp_main__ where it does not fork.
    """
    if not inspect.isfunction(function):
        raise ConfigError(f"{function!r} is not a function: a task is one, with a name in a module")
    module = function.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        if (spec := getattr(main, "__spec__", None)) is not None:
            module = spec.name
        elif file := getattr(main, "__file__", None):
            module = Path(file).stem
    return f"{module}.{function.__qualname__}"
