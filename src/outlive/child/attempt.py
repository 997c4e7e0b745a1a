"""One attempt in a child: call the task's function, classify how it ended, and measure what it took.

Whatever the job's code raises, even SystemExit, becomes a `Done` here. So BaseException is caught wherever that code
runs: in its function, and in the methods of its results and exceptions.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage, struct_rusage
from time import monotonic, time
from types import CoroutineType
from typing import Any, Protocol

import msgspec

from outlive import job_gateway, kernel, validation
from outlive.arguments import Codec
from outlive.child import context, copies, stops, telemetry
from outlive.child.channel import Channel
from outlive.child.context import Context, Findings
from outlive.errors import BadArguments, Cancel, ConfigError, Fail, OutliveError, Retry, SourcePaused, Stopped
from outlive.job_gateway import SourceAccount
from outlive.policy import Policy
from outlive.protocol import MARK, MAX_ERROR_CHARS, MAX_PAYLOAD_BYTES, MAX_STACK_CHARS, Done, Run
from outlive.states import Outcome

UNKNOWN_TASK_S = 5.0
"""How long a job waits before another worker may claim it, if this one does not have its task."""
UNFETCHED_S = 1.0
"""The same if its arguments could not be fetched."""
MAX_KIND_CHARS = 100
STDOUT = 1


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


def attempt(tasks: Mapping[str, Runnable], run: Run, channel: Channel) -> Done:
    """Run one job, and report how it ended."""
    task = tasks.get(run.task)
    if task is None:
        error = f"this worker does not have the task {run.task}"
        return Done(run.token, Outcome.RELEASED, error=error, after_s=UNKNOWN_TASK_S)
    usage_before, began = getrusage(RUSAGE_SELF), monotonic()
    done = perform(task, run, channel)
    took_s = monotonic() - began
    _flush_output()
    marked = _mark_output()  # After the flush: the mark must follow all that this job has printed.
    return _with_measurements(done, usage_before, took_s, marked=marked, preload=task.policy.preload, last=run.last)


def perform(task: Runnable, run: Run, channel: Channel) -> Done:
    """Call the function of a job, and say how that ended."""
    findings = Findings()
    account = SourceAccount(run.source, run.token, task.policy)
    job_gateway.account = account  # Requests to sources find it there, and `outlive.current()` finds the context.
    context.enter(Context(run, channel, findings, task.codec))
    if telemetry.watchers:
        telemetry.begin(run)
    try:
        value = _call_function(task, run, channel)
    except BaseException as error:
        try:
            done = _classify_error(error, run.token, task.policy, account)
        except BaseException:  # A class of the job's own may lack what its base class has, or raise when it is asked.
            done = Done(run.token, Outcome.FAILED, error=_summary(error), stack=_stack(error))
        if telemetry.watchers and done.stack is not None:  # It was not raised to say how the job should end.
            done = msgspec.structs.replace(done, told=telemetry.failed(error))
    else:
        done = _classify_result(value, run, task.codec, findings, account)
    context.leave()
    if telemetry.watchers:
        telemetry.end()
        done = msgspec.structs.replace(done, ended_at=time())
    job_gateway.account = None
    return done


def _call_function(task: Runnable, run: Run, channel: Channel) -> object:
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
            raise _Unfit(str(error)) from None
        value = task.function(*positional, **named)
        if isinstance(value, CoroutineType):
            import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

            value = asyncio.run(copies.awaited(value, channel.pid))
        return value


# How it ended


def _classify_result(value: object, run: Run, codec: Codec, findings: Findings, account: SourceAccount) -> Done:
    """The function returned. If its result or its findings can't be stored, another attempt would not help."""
    source_ok = None
    try:
        source_ok = account.source_ok(None)  # The job has used its source, even if its result can't be stored.
        result = context.encode_result(value, codec, run.max_result_bytes)
        records, spawns = findings.encode()
    except BaseException as error:
        return Done(run.token, Outcome.FAILED, error=_summary(error), final=True, source_ok=source_ok)
    if findings.unawaited:
        unawaited = (
            "acomplete was not awaited, so the job's effects are not tied to its end: write `await ctx.acomplete(…)`"
        )
        return Done(run.token, Outcome.FAILED, error=unawaited, final=True, source_ok=source_ok)
    size = len(result) + len(records or b"") + len(spawns or b"")
    if size > MAX_PAYLOAD_BYTES:
        too_much = f"its result, records and jobs have {size:,} bytes, over the limit of {MAX_PAYLOAD_BYTES:,}"
        return Done(run.token, Outcome.FAILED, error=too_much, final=True, source_ok=source_ok)
    return Done(
        run.token,
        Outcome.SUCCEEDED,
        result=None if result == b"null" else result,  # Stored as NULL.
        source_ok=source_ok,
        records=records,
        spawns=spawns,
    )


def _classify_error(error: BaseException, token: int, policy: Policy, account: SourceAccount) -> Done:
    """The function raised this. `source_ok` says whether its source is at fault; None: that is not known."""
    summary = _summary(error)
    match error:
        # These say nothing about the job's source.
        case _NotBegun():
            return Done(token, Outcome.RELEASED, error=_storable(str(error), MAX_ERROR_CHARS), after_s=UNFETCHED_S)
        case _Unfit():
            unfit = _storable(f"BadArguments: {error}", MAX_ERROR_CHARS)
            return Done(token, Outcome.FAILED, error=unfit, final=True)
        case SourcePaused():
            after_s, note = _delay_s(error.after_s)
            summary = _summary(error, note)
            # Not None, which would mean that the job was told to stop.
            return Done(token, Outcome.RELEASED, error=summary, after_s=after_s or 0.0)
        case Stopped():
            return Done(token, Outcome.RELEASED, error=summary)
        case Cancel():
            return Done(token, Outcome.CANCELLED, error=summary)
        case Fail():
            return Done(token, Outcome.FAILED, error=summary, final=True)
        case MemoryError():
            return Done(token, Outcome.OUT_OF_MEMORY, error=summary, stack=_stack(error))
        # These may be the source's fault.
        case Retry():
            after_s, note = _delay_s(error.after)
            summary = _summary(error, note)
            return Done(token, Outcome.FAILED, error=summary, after_s=after_s, source_ok=account.source_ok(error))
        case _:
            final = policy.is_final(error)
            source_ok = account.source_ok(error)
            return Done(token, Outcome.FAILED, error=summary, stack=_stack(error), final=final, source_ok=source_ok)


def _delay_s(after: validation.Duration | None) -> tuple[float | None, str]:
    """How long the job wants to wait, or None and a note: a delay that can't be read must not lose the next attempt."""
    if after is None:
        return None, ""
    try:
        return validation.seconds("after", after), ""
    except ConfigError as invalid:
        return None, f" ({invalid})"


# What it took


def _with_measurements(
    done: Done, before: struct_rusage, took_s: float, *, marked: bool, preload: bool, last: bool
) -> Done:
    """Add what only this process can measure."""
    after = getrusage(RUSAGE_SELF)
    # A task without preload runs after an exec, and ru_maxrss then still has the zygote's peak.
    peak_bytes = after.ru_maxrss * 1024 if preload else kernel.peak_bytes(os.getpid())
    if not last and (after.ru_maxrss > before.ru_maxrss or not preload):
        kernel.forget_peak()  # The next job in this child must not inherit it.
    return msgspec.structs.replace(
        done,
        took_s=took_s,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_memory_bytes=peak_bytes,
        marked=marked,
        process_ended=done.outcome is Outcome.FAILED and _any_subprocess_ended(),
        stopped_by=stops.last_signal(),
    )


def _any_subprocess_ended() -> bool:
    """Whether a process that this child has started has ended. That may be why the job failed.

    Every process has page faults: if reaped processes had any, one was reaped. It may be one of an earlier job in this
    child, which only delays the report of the failure.
    """
    if getrusage(RUSAGE_CHILDREN).ru_minflt:
        return True
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # Not contextlib.suppress, which costs more than the flush.
            stream.flush()
        except BaseException:  # The job may have closed or replaced it.
            continue


def _mark_output() -> bool:
    """If some output of this job is still unread, write a mark after it.

    Otherwise no mark is needed: what comes next is the next job's. Standard output and error share one pipe.
    """
    try:
        unread = kernel.unread_bytes(STDOUT)
        if unread:
            os.write(STDOUT, MARK)
    except OSError:  # The job has closed its output, or put something else in its place.
        return False
    return unread > 0


def _summary(error: BaseException, note: str = "") -> str:
    """The type and the message of an exception, even if it can't be printed. Of a long message the end is kept."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException:
        message = "(it can't be printed)"
    message += note
    kind = _storable(kind, MAX_KIND_CHARS)
    return f"{kind}: {_storable(message, MAX_ERROR_CHARS - len(kind) - 2)}"


def _stack(error: BaseException) -> str | None:
    try:
        return _storable("".join(traceback.format_exception(error)), MAX_STACK_CHARS)
    except BaseException:
        with contextlib.suppress(BaseException):
            return _storable("".join(traceback.format_tb(error.__traceback__)), MAX_STACK_CHARS)
    return None


def _storable(text: str, max_chars: int) -> str:
    """Text that Postgres can store. Of a long one the end is kept."""
    text = text[-4 * max_chars :]  # The text may be huge, and is copied next. More than needed: NULs are removed.
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= max_chars else "…" + text[1 - max_chars :]
