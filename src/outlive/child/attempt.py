"""One attempt in a child, as a pipe of steps: resolve the task, call its function, classify the end, measure it.

Each step takes what the one before it made, and `Done` comes out at the end. `guarded` (raised.py) is the only place
that catches what the job's code raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any, Protocol

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


def attempt(tasks: Mapping[str, Runnable], run: Run, channel: Channel, watchers: Watchers | None = None) -> Done:
    """Run one job, and report how it ended and what it took."""
    task = tasks.get(run.task)
    if task is None:
        error = f"this worker does not have the task {run.task}"
        return Done(run.token, Outcome.RELEASED, error=error, after_s=UNKNOWN_TASK_S)
    meter = Meter()
    done = perform(task, run, channel, watchers)
    return meter.measured(done, preload=task.policy.preload, last=run.last)


def perform(task: Runnable, run: Run, channel: Channel, watchers: Watchers | None = None) -> Done:
    """Call the function of a job, and say how that ended."""
    findings = Findings()
    account = SourceAccount(run.source, run.token, task.policy)
    with job_gateway.Inside(Context(run, channel, findings, task.codec), account):
        if watchers is not None:
            watchers.begin(run)
        returned = guarded(_call, task, run, channel)
        if isinstance(returned, Raised):
            done = _classify_error(returned, run.token, task.policy, account)
        else:
            done = _classify_result(returned, run, task.codec, findings, account)
        return done if watchers is None else watchers.end(done, returned)


def _call(task: Runnable, run: Run, channel: Channel) -> object:
    """Call the task's function with the job's arguments. To decode them may run its code too: that of their classes.

    A process that the job forks must not go on as a second child: it exits where it would return from here. Signals
    that stop the job raise `Stopped` in here, and nowhere else.
    """
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


def _classify_result(value: object, run: Run, codec: Codec, findings: Findings, account: SourceAccount) -> Done:
    """The function returned. If its result or its findings can't be stored, another attempt would not help."""
    source_ok = account.source_ok(None)  # The job has used its source, even if its result can't be stored.
    stored = guarded(_encode, value, run, codec, findings)
    if isinstance(stored, Raised):
        return Done(run.token, Outcome.FAILED, error=stored.summary(), final=True, source_ok=source_ok)
    result, records, spawns = stored
    return Done(run.token, Outcome.SUCCEEDED, result=result, source_ok=source_ok, records=records, spawns=spawns)


def _encode(value: object, run: Run, codec: Codec, findings: Findings) -> tuple[bytes | None, ...]:
    """What a success stores: the result, the records and the spawned jobs."""
    result = context.encode_result(value, codec, run.max_result_bytes)
    records, spawns = findings.encode()
    if findings.unawaited:
        raise Fail(
            "acomplete was not awaited, so the job's effects are not tied to its end: write `await ctx.acomplete(…)`"
        )
    size = len(result) + len(records or b"") + len(spawns or b"")
    if size > MAX_PAYLOAD_BYTES:
        raise Fail(f"its result, records and jobs have {size:,} bytes, over the limit of {MAX_PAYLOAD_BYTES:,}")
    return None if result == b"null" else result, records, spawns  # A result of None is stored as NULL.


def _classify_error(raised: Raised, token: int, policy: Policy, account: SourceAccount) -> Done:
    """The function raised this. A class of the job's own may lack what its base class has, or raise when it is read."""
    done = guarded(_by_class, raised, token, policy, account)
    if isinstance(done, Raised):
        return Done(token, Outcome.FAILED, error=raised.summary(), stack=raised.stack())
    return done


def _by_class(raised: Raised, token: int, policy: Policy, account: SourceAccount) -> Done:
    """`source_ok` says whether the job's source is at fault; None: that is not known."""
    error, summary = raised.error, raised.summary()
    match error:
        # These say nothing about the job's source.
        case _NotBegun():
            return Done(token, Outcome.RELEASED, error=storable(str(error), MAX_ERROR_CHARS), after_s=UNFETCHED_S)
        case _Unfit():
            return Done(token, Outcome.FAILED, error=storable(str(error), MAX_ERROR_CHARS), final=True)
        case SourcePaused():
            after_s, note = _delay_s(error.after_s)
            # Not None, which would mean that the job was told to stop.
            return Done(token, Outcome.RELEASED, error=raised.summary(note), after_s=after_s or 0.0)
        case Stopped():
            return Done(token, Outcome.RELEASED, error=summary)
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
            final = policy.is_final(error)
            failed = Done(token, Outcome.FAILED, error=summary, stack=raised.stack(), final=final)
    return replace(failed, source_ok=account.source_ok(error))


def _delay_s(after: validation.Duration | None) -> tuple[float | None, str]:
    """How long the job wants to wait, or None and a note: a delay that can't be read must not lose the next attempt."""
    if after is None:
        return None, ""
    try:
        return validation.seconds("after", after), ""
    except ConfigError as invalid:
        return None, f" ({invalid})"
