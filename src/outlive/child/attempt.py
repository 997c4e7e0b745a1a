"""One attempt in a child, in four steps: resolve the task, call its function, classify the end, measure it.

`attempt` has the steps in this order. `guarded` (raised.py) is the only place that catches what the job's code raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from outlive import job_gateway, validation
from outlive.arguments import Codec
from outlive.child import context, copies, stops
from outlive.child.channel import Channel
from outlive.child.context import Context, Findings
from outlive.child.meter import Meter
from outlive.child.raised import Raised, guarded, storable
from outlive.child.telemetry import Watchers
from outlive.errors import BadArguments, Cancel, ConfigError, Fail, OutliveError, Retry, SourcePaused, Stopped
from outlive.job_gateway import SourceAccount
from outlive.policy import Policy
from outlive.protocol import MAX_ERROR_CHARS, MAX_PAYLOAD_BYTES, Done, Run
from outlive.states import Outcome

UNKNOWN_TASK_S = 5.0
"""How long a job waits before another worker may claim it, if this one does not have its task."""
UNFETCHED_S = 1.0
"""The same if its arguments could not be fetched."""


class _NotBegun(Exception):
    """The job's code could not begin, and is not to blame."""


class _Unfit(Exception):
    """The job's arguments don't fit its function: another attempt would not help."""


class Runnable(Protocol):
    """A task, as far as a child needs it. The child does not import the client's class."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def codec(self) -> Codec: ...


class _Attempt(NamedTuple):
    """One job and its task, and what it collects while it runs."""

    task: Runnable
    run: Run
    channel: Channel
    findings: Findings
    account: SourceAccount


def attempt(tasks: Mapping[str, Runnable], run: Run, channel: Channel, *, watchers: Watchers, meter: Meter) -> Done:
    """Run one job, and report how it ended and what it took."""
    one = _resolve(tasks, run, channel)
    if one is None:
        error = f"this worker does not have the task {run.task}"
        return Done(run.token, Outcome.RELEASED, error=error, after_s=UNKNOWN_TASK_S)
    with job_gateway.Inside(Context(run, channel, one.findings, one.task.codec), one.account):
        watchers.begin(run)
        ended = guarded(_call, one)
        done = _classify(one, ended)
        done = watchers.end(done, ended)
    return meter.measured(done, preload=one.task.policy.preload, last=run.last)


def _resolve(tasks: Mapping[str, Runnable], run: Run, channel: Channel) -> _Attempt | None:
    task = tasks.get(run.task)
    if task is None:
        return None
    return _Attempt(task, run, channel, Findings(), SourceAccount(run.source, run.token, task.policy))


def _call(one: _Attempt) -> object:
    """Call the task's function with the job's arguments. To decode them may run its code too: that of their classes.

    A process that the job forks must not go on as a second child: it exits where it would return from here. Signals
    that stop the job raise `Stopped` in here, and nowhere else.
    """
    task, run, channel, *_ = one
    try:
        encoded = channel.arguments() if run.args is None else run.args  # Large ones come separately.
    except OutliveError as error:
        raise _NotBegun(f"its arguments could not be fetched: {error}") from error
    with copies.CopiesExit(channel.pid), stops.let_through:
        try:
            positional, named = task.codec.unpack(encoded)
        except BadArguments as error:
            raise _Unfit(f"BadArguments: {error}") from None
        value = task.function(*positional, **named)
        if isinstance(value, CoroutineType):
            import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

            value = asyncio.run(copies.awaited(value, channel.pid))
        return value


def _classify(one: _Attempt, ended: object | Raised) -> Done:
    """How the attempt ended. To read a result or an exception runs code of the job too, which may raise in turn."""
    read = guarded(_failure if isinstance(ended, Raised) else _success, one, ended)
    match ended, read:
        case _, Done() as done:
            return done
        case Raised() as unreadable, _:  # A class of the job's own may lack what its base class has.
            return Done(one.run.token, Outcome.FAILED, error=unreadable.summary(), stack=unreadable.stack())
        case _, Raised() as unstorable:  # Another attempt would not help. The job has used its source all the same.
            source_ok = one.account.source_ok(None)
            return Done(one.run.token, Outcome.FAILED, error=unstorable.summary(), final=True, source_ok=source_ok)


def _success(one: _Attempt, value: object) -> Done:
    """The function returned: the job's result, its records and its spawned jobs are stored."""
    result = context.encode_result(value, one.task.codec, one.run.max_result_bytes)
    records, spawns = one.findings.encode()
    if one.findings.unawaited:
        raise Fail(
            "acomplete was not awaited, so the job's effects are not tied to its end: write `await ctx.acomplete(…)`"
        )
    size = len(result) + len(records or b"") + len(spawns or b"")
    if size > MAX_PAYLOAD_BYTES:
        raise Fail(f"its result, records and jobs have {size:,} bytes, over the limit of {MAX_PAYLOAD_BYTES:,}")
    stored = None if result == b"null" else result  # A result of None is stored as NULL.
    source_ok = one.account.source_ok(None)
    return Done(one.run.token, Outcome.SUCCEEDED, result=stored, source_ok=source_ok, records=records, spawns=spawns)


def _failure(one: _Attempt, raised: Raised) -> Done:
    """The function raised. `source_ok` says whether the job's source is at fault; None: that is not known."""
    token, error, summary = one.run.token, raised.error, raised.summary()
    match error:
        # These say nothing about the job's source.
        case _NotBegun():
            return Done(token, Outcome.RELEASED, error=storable(str(error), MAX_ERROR_CHARS), after_s=UNFETCHED_S)
        case _Unfit():
            return Done(token, Outcome.FAILED, error=storable(str(error), MAX_ERROR_CHARS), final=True)
        case SourcePaused():
            after_s, note = _delay_s(error.after_s)
            return Done(token, Outcome.RELEASED, error=raised.summary(note), after_s=after_s or 0.0)
        case Stopped():
            return Done(token, Outcome.RELEASED, error=summary, stopped=True)
        case Cancel():
            return Done(token, Outcome.CANCELLED, error=summary)
        case Fail():
            return Done(token, Outcome.FAILED, error=summary, final=True)
        case MemoryError():
            return Done(token, Outcome.OUT_OF_MEMORY, error=summary, stack=raised.stack())
        # These may be the source's fault.
        case Retry():
            after_s, note = _delay_s(error.after)
            failed = Done(token, Outcome.FAILED, error=raised.summary(note), after_s=after_s)
        case _:
            final = one.task.policy.is_final(error)
            failed = Done(token, Outcome.FAILED, error=summary, stack=raised.stack(), final=final)
    return replace(failed, source_ok=one.account.source_ok(error))


def _delay_s(after: validation.Duration | None) -> tuple[float | None, str]:
    """How long the job wants to wait, or None and a note: a delay that can't be read must not lose the next attempt."""
    if after is None:
        return None, ""
    try:
        return validation.seconds("after", after), ""
    except ConfigError as invalid:
        return None, f" ({invalid})"
