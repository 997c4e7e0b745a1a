"""A child: takes a job, runs it, reports, and exits — or takes the next one of the same task.

This is one of the two places with a catch-all: whatever a job raises becomes data here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import inspect
import os
import resource
import signal
import socket
import struct
import sys
import termios
import traceback
from collections.abc import Callable, Mapping
from os import _exit
from typing import Any, Protocol

import msgspec

from outlive import job_gateway, kernel, validation, wire
from outlive.child import context, copies, stops
from outlive.child.apps import import_app
from outlive.child.channel import Channel, SupervisorGone
from outlive.errors import AppNotFound, BadArguments, Cancel, ConfigError, Fail, Retry, SourcePaused, Stopped
from outlive.policy import Policy
from outlive.protocol import (
    MARK,
    MAX_BROUGHT_BYTES,
    MAX_ERROR_CHARS,
    MAX_STACK_CHARS,
    Done,
    Imported,
    Run,
    encode_frame,
    write_tickets,
)
from outlive.states import Outcome


class Runnable(Protocol):
    """What a child needs of a task."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def policy(self) -> Policy: ...


Tasks = Mapping[str, Runnable]
NOT_IMPORTED = 3
REHEARSALS = 20
"""Python specialises what it has run some eight times."""


def get_ready(stack: int) -> None:
    """What a zygote does once, and each of its children would have to do otherwise: a page written before the fork is
    a page that no child must copy. Whoever dies from now on leaves its stack in that descriptor.
    """
    faulthandler.enable(stack, all_threads=True)
    signal.signal(signal.SIGTERM, stops.on_stop)
    faulthandler.register(signal.SIGTERM, stack, all_threads=True, chain=True)


def rehearse() -> None:
    """Become a child and run nothing, a few times: the interpreter has warmed up before the forks. Nobody sees it."""
    seen = [os.dup(descriptor) for descriptor in (0, 1, 2)]
    read, write = os.pipe()
    tickets, put = os.pipe()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(REHEARSALS):
            _settle(write)
            os.write(put, write_tickets([0]))
            ours.sendall(encode_frame(Run(0, b"", "", 1, b"[]", True, 100)))
            channel = Channel(socket.socket(fileno=os.dup(theirs.fileno())), tickets)
            channel.send(_attempt(_Nothing(), channel.next_run(), channel))
    for descriptor, number in zip(seen, (0, 1, 2), strict=True):
        os.dup2(descriptor, number)
    for descriptor in (*seen, read, write, tickets, put):
        os.close(descriptor)


class _Nothing:
    """A task that is rehearsed with."""

    policy = Policy()

    def function(self) -> None:
        pass


def main(tasks: Tasks, target: str, sock: int, output: int, stack: int, tickets: int) -> int:
    """Become a child of its own session, with its output where the supervisor finds it."""
    os.setsid()
    kernel.die_with_parent()
    _settle(output)
    return serve(tasks, target, sock, stack, Channel(socket.socket(fileno=sock), tickets))


def _settle(output: int) -> None:
    """What the zygote had and a job must not have: its signals, its orphans, its output, its random numbers."""
    for number in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, stops.on_stop)
    kernel.become_subreaper()
    _plug(output)
    _reseed()


def serve(tasks: Tasks, target: str, sock: int, stack: int, channel: Channel, first: Run | None = None) -> int:
    """Take jobs until one is the last, or nobody is left to work for."""
    job_gateway.gateway = channel
    with contextlib.suppress(SupervisorGone, ConnectionResetError, BrokenPipeError):
        while True:
            run = first or channel.next_run()
            task = tasks.get(run.task)
            if task is not None and not task.policy.preload and first is None:
                _exec(target, sock, stack, channel, run)
            channel.send(_attempt(task, run, channel))
            if run.last:
                break
            first = None
    return 0


def _exec(target: str, sock: int, stack: int, channel: Channel, run: Run) -> None:
    """Go on in an interpreter that has imported nothing, for code that hates a fork. Socket, output and pid stay."""
    note = os.memfd_create("outlive-run")
    os.write(note, msgspec.msgpack.encode((run, *channel.unread())))
    for descriptor in (sock, stack, channel.tickets, note):
        os.set_inheritable(descriptor, True)
    numbers = map(str, (sock, stack, channel.tickets, note))
    try:
        os.execv(sys.executable, [sys.executable, "-m", "outlive.child.serving", target, *numbers])
    except OSError as error:
        print(f"{sys.executable} can't be executed: {error}", file=sys.stderr, flush=True)
        _exit(NOT_IMPORTED)


def _plug(output: int) -> None:
    """Standard output and error go to the supervisor; there is nothing to read."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)


def _reseed() -> None:
    """Children of one zygote must not draw the same numbers."""
    if random := sys.modules.get("random"):
        random.seed()
    if numpy_random := sys.modules.get("numpy.random"):  # Only what is loaded: numpy loads it when it is asked for.
        numpy_random.seed()


def _attempt(task: Runnable | None, run: Run, channel: Channel) -> Done:
    """Run one job and say how it ended."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    if task is None:
        return Done(run.token, Outcome.RELEASED, error=f"this worker has no task {run.task}", after_s=5.0)
    checkpoint = None if run.checkpoint is None else wire.decode(run.checkpoint)
    me = context.Context(
        run.job_id,
        run.attempt,
        run.token,
        channel.worker,
        checkpoint,
        run.source,
        task.policy,
        channel,
        run.max_result_bytes,
    )
    context.enter(me)
    end = _ended(task, run, me, channel)
    context.enter(None)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    after = resource.getrusage(resource.RUSAGE_SELF)
    if after.ru_maxrss > before.ru_maxrss and not run.last:
        kernel.forget_peak()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    brought: tuple[bytes | None, bytes | None] = (None, None)
    if end[0] is Outcome.SUCCEEDED:
        try:
            brought = _brought(me, end[1])
        except BaseException as error:
            end = (Outcome.FAILED, None, _words(error), None, True, None)
    # What a process had before it was executed anew counts in ru_maxrss: there it is the zygote's.
    peak_bytes = after.ru_maxrss * 1024 if task.policy.preload else kernel.peak_bytes(os.getpid())
    return Done(run.token, *end, cpu_s, peak_bytes, _mark_output(), me.source_ok, *brought, stops.came())


def _brought(me: context.Context, result: bytes | None) -> tuple[bytes | None, bytes | None]:
    """What it has found and what it asks for, if that can be said together with its result."""
    records, spawns = me.found()
    size = sum(len(part) for part in (result, records, spawns) if part is not None)
    if size > MAX_BROUGHT_BYTES:
        raise BadArguments(f"its result, records and jobs have {size:,} bytes, over the limit of {MAX_BROUGHT_BYTES:,}")
    return records, spawns


def _ended(
    task: Runnable, run: Run, me: context.Context, channel: Channel
) -> tuple[str, bytes | None, str | None, str | None, bool, float | None]:
    """outcome, result, error, stack, final, after_s."""
    pid = channel.pid
    try:
        positional, named = wire.unpack(wire.decode(channel.arguments() if run.args is None else run.args))
        with copies.LeftHere(pid), stops.let_through:
            value = task.function(*positional, **named)
            if inspect.iscoroutine(value):
                import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

                value = asyncio.run(copies.awaited(value, pid))
    except SourcePaused as error:
        return Outcome.RELEASED, None, _words(error), None, False, error.after_s
    except Retry as error:
        me.blame_source(error)
        try:
            after_s = None if error.after is None else validation.seconds("after", error.after)
        except ConfigError as wrong:
            return Outcome.FAILED, None, f"{_words(error)} ({wrong})", None, False, None
        return Outcome.FAILED, None, _words(error), None, False, after_s
    except Fail as error:
        return Outcome.FAILED, None, _words(error), None, True, None
    except Cancel as error:
        return Outcome.CANCELLED, None, _words(error), None, False, None
    except Stopped as error:
        return Outcome.RELEASED, None, _words(error), None, False, None
    except MemoryError as error:
        return Outcome.OUT_OF_MEMORY, None, _words(error), _stack(error), False, None
    except BaseException as error:
        me.blame_source(error)
        final = isinstance(error, task.policy.fail_on) and not isinstance(error, task.policy.retry_on)
        return Outcome.FAILED, None, _words(error), _stack(error), final, None
    try:
        result = wire.encode(value, "the result")
        if len(result) > run.max_result_bytes:
            raise wire.NotJson(f"the result has {len(result):,} bytes, over the limit of {run.max_result_bytes:,}")
    except BaseException as error:
        return Outcome.FAILED, None, _words(error), None, True, None
    me.praise_source()
    return Outcome.SUCCEEDED, None if result == b"null" else result, None, None, False, None


def _words(error: BaseException) -> str:
    """An exception in one line, also one that can't be printed."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = f"{type(error).__name__}: (it can't be printed)"
    return _clean(text, MAX_ERROR_CHARS)


def _stack(error: BaseException) -> str | None:
    try:
        return _clean("".join(traceback.format_exception(error)), MAX_STACK_CHARS)
    except BaseException:
        with contextlib.suppress(BaseException):
            return _clean("".join(traceback.format_tb(error.__traceback__)), MAX_STACK_CHARS)
    return None


def _clean(text: str, most: int) -> str:
    """Text that Postgres takes, with its end kept."""
    text = text[-4 * most :].replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= most else "…" + text[1 - most :]


def _mark_output() -> bool:
    """Say in the output where this job's ends, if some of it is still unread."""
    with contextlib.suppress(OSError):  # The job has closed its output, or put something else in its place.
        (unread,) = struct.unpack("i", fcntl.ioctl(1, termios.FIONREAD, b"\0\0\0\0"))
        if unread:
            os.write(1, MARK)
        return bool(unread)
    return False


def go_on(target: str, sock: int, stack: int, tickets: int, note: int) -> int:
    """The other side of `_exec`."""
    carried = os.pread(note, os.fstat(note).st_size, 0)
    run, runs, rest = msgspec.msgpack.decode(carried, type=tuple[Run, list[Run], bytes])
    os.close(note)
    for descriptor in (sock, stack, tickets):
        os.set_inheritable(descriptor, False)
    get_ready(stack)
    signal.signal(signal.SIGINT, stops.on_stop)
    channel = Channel(socket.socket(fileno=sock), tickets)
    channel.resume(runs, rest)
    try:
        app = import_app(target)
    except AppNotFound as error:
        print(error, file=sys.stderr, flush=True)
        return NOT_IMPORTED
    channel.send(Imported(run.token))
    return serve(app.tasks, target, sock, stack, channel, run)


if __name__ == "__main__":
    _exit(go_on(sys.argv[1], *map(int, sys.argv[2:])))
