"""One attempt in a child: resolve the task, run its function, classify how it ended, report that as `Done`.

This is one of the two places with a catch-all: whatever the job's code raises becomes data here.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import os
import resource
import struct
import sys
import termios
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from outlive import job_gateway, kernel, validation, wire
from outlive.child import context, copies, stops
from outlive.child.channel import Channel
from outlive.child.context import Context, Findings
from outlive.errors import BadArguments, Cancel, ConfigError, Fail, Retry, SourcePaused, Stopped
from outlive.job_gateway import SourceAccount
from outlive.policy import Policy
from outlive.protocol import MARK, MAX_ERROR_CHARS, MAX_PAYLOAD_BYTES, MAX_STACK_CHARS, Done, Run
from outlive.states import Outcome

NO_TASK_S = 5.0
"""How long a job waits before another worker may claim it, if this one does not have its task."""


class Runnable(Protocol):
    """What a child needs of a task."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def policy(self) -> Policy: ...


def attempt(tasks: Mapping[str, Runnable], run: Run, channel: Channel) -> Done:
    """Run one job. The result is the report of how it ended."""
    task = tasks.get(run.task)
    if task is None:
        error = f"this worker does not have the task {run.task}"
        return Done(run.token, Outcome.RELEASED, error=error, after_s=NO_TASK_S)
    before = resource.getrusage(resource.RUSAGE_SELF)
    findings = Findings()
    account = job_gateway.account = SourceAccount(run.source, run.token, task.policy)
    context.enter(Context(run, channel, findings))
    try:
        value = _run(task, run, channel)
    except BaseException as error:
        done = _classify_error(error, run.token, task.policy, account)
    else:
        done = _classify_result(value, run, findings, account)
    context.enter(None)
    job_gateway.account = None
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return _report(done, before, preload=task.policy.preload, last=run.last)


def _run(task: Runnable, run: Run, channel: Channel) -> object:
    """Call the task's function with the job's arguments."""
    positional, named = wire.unpack(wire.decode(channel.arguments() if run.args is None else run.args))
    with copies.CopiesExit(channel.pid), stops.let_through:
        value = task.function(*positional, **named)
        if inspect.iscoroutine(value):
            import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

            value = asyncio.run(copies.awaited(value, channel.pid))
        return value


def _classify_result(value: object, run: Run, findings: Findings, account: SourceAccount) -> Done:
    """The function returned. The attempt still fails if its result or its findings can't be stored."""
    source_ok = None
    try:
        result = context.encode_result(value, run.max_result_bytes)
        source_ok = account.source_ok(None)
        records, spawns = findings.encode()
        size = sum(len(part) for part in (result, records, spawns) if part is not None)
        if size > MAX_PAYLOAD_BYTES:
            raise BadArguments(
                f"its result, records and jobs have {size:,} bytes, over the limit of {MAX_PAYLOAD_BYTES:,}"
            )
    except BaseException as error:
        return Done(run.token, Outcome.FAILED, error=_summary(error), final=True, source_ok=source_ok)
    return Done(
        run.token,
        Outcome.SUCCEEDED,
        result=None if result == b"null" else result,
        source_ok=source_ok,
        records=records,
        spawns=spawns,
    )


def _classify_error(error: BaseException, token: int, policy: Policy, account: SourceAccount) -> Done:
    """The function raised this."""
    summary = _summary(error)
    match error:
        case SourcePaused():
            return Done(token, Outcome.RELEASED, error=summary, after_s=error.after_s)
        case Stopped():
            return Done(token, Outcome.RELEASED, error=summary)
        case Cancel():
            return Done(token, Outcome.CANCELLED, error=summary)
        case Fail():
            return Done(token, Outcome.FAILED, error=summary, final=True)
        case MemoryError():
            return Done(token, Outcome.OUT_OF_MEMORY, error=summary, stack=_stack(error))
    source_ok = account.source_ok(error)
    if isinstance(error, Retry):
        try:
            after_s = None if error.after is None else validation.seconds("after", error.after)
        except ConfigError as wrong:
            summary, after_s = f"{summary} ({wrong})", None
        return Done(token, Outcome.FAILED, error=summary, after_s=after_s, source_ok=source_ok)
    final = isinstance(error, policy.fail_on) and not isinstance(error, policy.retry_on)
    return Done(token, Outcome.FAILED, error=summary, stack=_stack(error), final=final, source_ok=source_ok)


def _report(done: Done, before: resource.struct_rusage, *, preload: bool, last: bool) -> Done:
    """Complete the report with what only this process can measure."""
    after = resource.getrusage(resource.RUSAGE_SELF)
    # After an exec, ru_maxrss still has the zygote's peak.
    peak_bytes = after.ru_maxrss * 1024 if preload else kernel.peak_bytes(os.getpid())
    if after.ru_maxrss > before.ru_maxrss and not last:
        kernel.forget_peak()
    return msgspec.structs.replace(
        done,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_memory_bytes=peak_bytes,
        marked=_mark_output(),
        process_ended=done.outcome == Outcome.FAILED and _process_ended(),
        stopped_by=stops.last_signal(),
    )


def _process_ended() -> bool:
    """Whether a process that this child started has ended, reaped or not."""
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt:
        return True
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _mark_output() -> bool:
    """Mark where this job's output ends, while the supervisor still has some of it to read."""
    try:
        (unread,) = struct.unpack("i", fcntl.ioctl(1, termios.FIONREAD, b"\0\0\0\0"))
        if unread:
            os.write(1, MARK)
    except OSError:  # The job has closed its output, or put something else in its place.
        return False
    return bool(unread)


def _summary(error: BaseException) -> str:
    """An exception in one line, even if it can't be printed."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = f"{type(error).__name__}: (it can't be printed)"
    return _storable(text, MAX_ERROR_CHARS)


def _stack(error: BaseException) -> str | None:
    try:
        return _storable("".join(traceback.format_exception(error)), MAX_STACK_CHARS)
    except BaseException:
        with contextlib.suppress(BaseException):
            return _storable("".join(traceback.format_tb(error.__traceback__)), MAX_STACK_CHARS)
    return None


def _storable(text: str, max_chars: int) -> str:
    """Text that Postgres can store. Of a long one the end is kept."""
    text = text[-4 * max_chars :].replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= max_chars else "…" + text[1 - max_chars :]
