"""One attempt in a child: call the task's function, and say how that ended.

`attempt` has these steps in order, and `attempt_beside` has them for a job that shares its process. `guarded`
(boundary.py) and its async twin are the only places that catch what the job's code raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic
from types import CoroutineType, FunctionType
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from outlive import errors, job_gateway, references, validation
from outlive.arguments import Codec
from outlive.child import context, stops, talks
from outlive.child.boundary import CopiesExit, Raised, aguarded, awaited, guarded, storable
from outlive.child.channel import Channel
from outlive.child.context import Context, Findings
from outlive.child.talks import Talk
from outlive.child.telemetry import Watchers
from outlive.job_gateway import SourceAccount
from outlive.policy import Policy
from outlive.protocol import MAX_ERROR_CHARS, MAX_PAYLOAD_BYTES, Done, Run
from outlive.states import Outcome

UNKNOWN_TASK_S = 5.0  # How long a job waits before another worker may claim it, if this one does not have its task.
UNFETCHED_S = 1.0  # The same if its arguments could not be fetched.


class _NotFetched(errors.OutliveError):
    """The job's code could not begin, and is not to blame."""

    def __init__(self, error: errors.OutliveError) -> None:
        super().__init__(f"its arguments could not be fetched: {error}")


class _Unfit(errors.OutliveError):
    """The job's arguments don't fit its function: another attempt would not help."""


class Runnable(Protocol):
    """A task, as far as a child needs it. The child does not import the client's class."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def codec(self) -> Codec: ...
    @property
    def surroundings(self) -> Sequence[FunctionType]: ...


class _Attempt:
    """One job with its task, and what it collects while it runs."""

    __slots__ = ("account", "channel", "findings", "run", "task")

    def __init__(self, task: Runnable, run: Run, channel: Channel) -> None:
        self.task, self.run, self.channel = task, run, channel
        self.findings, self.account = Findings(), SourceAccount(run.source, run.token, task.policy)

    @property
    def context(self) -> Context:
        return Context(self.run, self.channel, self.findings, self.task.codec)


def attempt(
    tasks: Mapping[str, Runnable],
    run: Run,
    channel: Channel,
    *,
    watchers: Watchers,
    not_started: Raised | None = None,
    lifespans: Sequence[FunctionType] = (),
) -> Done:
    """Run one job, and report how it ended. `not_started`: why its process can't run jobs."""
    began = monotonic()
    if (refused := _refused(tasks, run, channel)) is not None:
        return refused
    this = _Attempt(tasks[run.task], run, channel)
    with job_gateway.Inside(this.context, this.account):
        watchers.begin(run)
        done = _ended(this, not_started or guarded(_call, this, lifespans), watchers)
    done.took_s = monotonic() - began
    return done


async def attempt_beside(
    tasks: Mapping[str, Runnable], run: Run, channel: Channel, *, watchers: Watchers, not_started: Raised | None
) -> Done:
    """The same for a job that shares its process, in a task of its own."""
    began = monotonic()
    fetched = await aguarded(_fetch(run, channel))
    if (refused := _refused(tasks, run, channel)) is not None:
        return refused
    this = _Attempt(tasks[run.task], run, channel)
    job_gateway.share(this.context, this.account)
    watchers.begin(run)
    given = not_started or fetched
    returned = given if isinstance(given, Raised) else await aguarded(_acall(this, *given))
    done = _ended(this, returned, watchers)
    done.took_s = monotonic() - began
    return done


def _refused(tasks: Mapping[str, Runnable], run: Run, channel: Channel) -> Done | None:
    """The end of a job that does not begin here."""
    if run.task not in tasks:
        error = f"this worker does not have the task {run.task}"
        return Done(run.token, Outcome.RELEASED, error=error, after_s=UNKNOWN_TASK_S)
    if channel.goes_back(run):
        return Done(run.token, Outcome.RELEASED, error=f"the source {run.source} failed just before it began")
    return None


def _ended(this: _Attempt, returned: object, watchers: Watchers) -> Done:
    """How the job ended. If its source has failed, its process gives back jobs of that source that did not begin."""
    done = _failed(this, returned) if isinstance(returned, Raised) else _succeeded(this, returned)
    watchers.end(this.run, done, returned)
    if this.run.source and (done.source_ok is False or this.account.failed):
        this.channel.source_failed(this.run.source)
    return done


def _came_with_job(run: Run) -> tuple[bytes, list[bytes | None]] | None:
    """What `_arguments` returns, if it has nothing to ask. A talk costs each fork a dozen pages."""
    return None if run.args is None or references.MARK in run.args else (run.args, [])


def _arguments(run: Run) -> Talk[tuple[bytes, list[bytes | None]]]:
    """The arguments of a job, which don't come with it if they are large, and the results that stand for some."""
    encoded = (yield from talks.arguments()) if run.args is None else run.args
    return encoded, (yield from talks.inputs()) if references.MARK in encoded else []


async def _fetch(run: Run, channel: Channel) -> tuple[bytes, list[bytes | None]]:
    """Fetch what did not come with a job, while others run."""
    try:
        if run.steps is None:
            kept = [(name, Raw(value or b"null"), given) for name, value, given in await channel.atalk(talks.steps())]
            run.steps = msgspec.json.encode(kept)
        came = _came_with_job(run)
        return came if came is not None else await channel.atalk(_arguments(run))
    except errors.OutliveError as error:
        raise _NotFetched(error) from error


async def _acall(this: _Attempt, encoded: bytes, inputs: list[bytes | None]) -> object:
    positional, named = _unpacked(this, encoded, inputs)
    return await within((), _surrounded(this.task, positional, named))


def _call(this: _Attempt, lifespans: Sequence[FunctionType]) -> object:
    """Call the task's function with the job's arguments. To decode them may run its code too: that of their classes.
    Signals that stop the job raise `Stopped` in here, and nowhere else."""
    task, channel = this.task, this.channel
    try:
        encoded, inputs = _came_with_job(this.run) or channel.talk(_arguments(this.run))
    except errors.OutliveError as error:
        raise _NotFetched(error) from error
    with CopiesExit(channel.pid), stops.let_through:
        positional, named = _unpacked(this, encoded, inputs)
        value = _surrounded(task, positional, named)
        if isinstance(value, CoroutineType):
            import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

            value = asyncio.run(awaited(within(lifespans if task.policy.share > 1 else (), value), channel.pid))
        return value


def _surrounded(task: Runnable, positional: list[Any], named: dict[str, Any]) -> Any:
    """Call the task's function within what its app has around each job. That of an async function begins with it: what
    it sets for the job's code must be set in the context in which that runs."""
    if not task.surroundings:
        return task.function(*positional, **named)
    if iscoroutinefunction(task.function):
        return _asurrounded(task, task.function(*positional, **named))
    with _surroundings(task):
        return task.function(*positional, **named)
    raise _swallowed(task)


async def _asurrounded(task: Runnable, value: Awaitable[object]) -> object:
    with _surroundings(task):
        return await value
    raise _swallowed(task)


@contextmanager
def _surroundings(task: Runnable) -> Iterator[None]:
    with ExitStack() as stack:
        for one in task.surroundings:
            stack.enter_context(contextmanager(one)())
        yield


def _swallowed(task: Runnable) -> errors.OutliveError:
    names = ", ".join(one.__qualname__ for one in task.surroundings)
    return errors.OutliveError(
        f"what the job raised was caught under @app.around_job, and not raised again (functions there: {names})"
    )


async def within(lifespans: Sequence[FunctionType], value: Awaitable[object]) -> object:
    """Run an async job in its own task, and within these lifespans: one of a shared task may run alone."""
    import asyncio  # As above.

    context.own_task.set(asyncio.current_task())
    async with AsyncExitStack() as stack:
        for one in lifespans:
            await stack.enter_async_context(asynccontextmanager(one)())
        return await value


def _unpacked(this: _Attempt, encoded: bytes, inputs: list[bytes | None]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, with the results of other jobs in their places."""
    empty: list[str] = []
    try:
        if references.MARK in encoded:
            encoded, empty = references.filled(encoded, inputs)
        return this.task.codec.unpack(encoded)
    except errors.BadArguments as error:
        missing = f"; there is no result for {', '.join(empty)}" if empty else ""
        raise _Unfit(f"BadArguments: {error}{missing}") from None


def _succeeded(this: _Attempt, value: object) -> Done:
    """The function returned. If what it returned can't be stored, another attempt would not help."""
    stored = guarded(_encode, this, value)
    if isinstance(stored, Raised):
        done = Done(this.run.token, Outcome.FAILED, error=stored.summary(), final=True)
    else:
        result, records, spawns = stored
        done = Done(this.run.token, Outcome.SUCCEEDED, result=result, records=records, spawns=spawns)
    done.source_ok = this.account.source_ok(None)
    return done


def _encode(this: _Attempt, value: object) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The job's result, its records and the jobs that it spawns. This runs code of the job: that of their classes."""
    result = context.encode_result(value, this.task.codec, this.run.max_result_bytes)
    records, spawns = this.findings.encode()
    if this.findings.unawaited:
        raise errors.Fail(
            "acomplete was not awaited, so the job's effects are not tied to its end: write `await ctx.acomplete(…)`"
        )
    size = len(result) + len(records or b"") + len(spawns or b"")
    if size > MAX_PAYLOAD_BYTES:
        raise errors.Fail(f"its result, records and jobs have {size:,} bytes, over the limit of {MAX_PAYLOAD_BYTES:,}")
    return (None if result == b"null" else result), records, spawns  # A result of None is stored as NULL.


def _failed(this: _Attempt, raised: Raised) -> Done:
    """The function raised. An exception of the job's own class may raise in turn when it is read."""
    done = guarded(_classify, this, raised)
    if isinstance(done, Raised):
        return Done(this.run.token, Outcome.FAILED, error=raised.summary(), stack=raised.stack())
    return done


def _classify(this: _Attempt, raised: Raised) -> Done:
    """The outcome that an exception stands for."""
    ended, error = partial(Done, this.run.token), raised.error
    match error:
        case _NotFetched():
            done = ended(Outcome.RELEASED, error=storable(str(error), MAX_ERROR_CHARS), after_s=UNFETCHED_S)
        case _Unfit():
            done = ended(Outcome.FAILED, error=storable(str(error), MAX_ERROR_CHARS), final=True)
        case errors.Restarted():
            done = ended(Outcome.RELEASED, error=storable(str(error), MAX_ERROR_CHARS), restart=error.arguments)
        case errors.Snooze(after=after) | errors.SourcePaused(after_s=after):
            after_s, note = _delay_s(after)
            done = ended(Outcome.RELEASED, error=raised.summary(note), after_s=after_s or 0.0)
        case errors.Stopped():
            done = ended(Outcome.RELEASED, error=raised.summary(), stopped=True)
        case errors.Cancel():
            done = ended(Outcome.CANCELLED, error=raised.summary())
        case errors.Fail():
            done = ended(Outcome.FAILED, error=raised.summary(), stack=raised.stack_if_caused(), final=True)
        case errors.Retry():
            after_s, note = _delay_s(error.after)
            done = ended(Outcome.FAILED, error=raised.summary(note), stack=raised.stack_if_caused(), after_s=after_s)
        case MemoryError():
            done = ended(Outcome.OUT_OF_MEMORY, error=raised.summary(), stack=raised.stack())
        case _:
            final = this.task.policy.is_final(error)
            done = ended(Outcome.FAILED, error=raised.summary(), stack=raised.stack(), final=final)
    done.source_ok = this.account.source_ok(error)
    return done


def _delay_s(after: validation.Duration | None) -> tuple[float | None, str]:
    """How long the job wants to wait, or None and a note: a delay that can't be read must not lose the next attempt."""
    if after is None:
        return None, ""
    try:
        return validation.seconds("after", after), ""
    except errors.ConfigError as invalid:
        return None, f" ({invalid})"
