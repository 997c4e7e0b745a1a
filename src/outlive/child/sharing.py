"""A shared child: one event loop in which many jobs of one task run beside each other.

Each job has a seat: a task of asyncio with a context of its own, by which `outlive.current()`, prints and log records
are known to be its. The supervisor decides about timeouts and cancels, and sends `Halt`. It also watches the loop from
outside, because a job that blocks the loop blocks all that could be done here: see `Pulse`.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
from asyncio import Future, Task
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from outlive import job_gateway, protocol
from outlive.child import awaiting, log_records, seats
from outlive.child.attempt import Runnable, attempt_beside
from outlive.child.boundary import CopiesExit, ProcessStart, Raised, guarded
from outlive.child.channel import Channel, SupervisorGone
from outlive.child.seats import Noted, OwnTask, Pulse, Seat, Threads
from outlive.child.shared_channel import SharedChannel
from outlive.child.telemetry import Watchers
from outlive.errors import OutliveError
from outlive.protocol import Done, Halt, Printed, Run, Stack
from outlive.states import Outcome

LEFT_S = 1.0  # How long tasks that a job has left behind may take to end when they are cancelled.
FOR_ALL_JOBS = (
    "stop", "close", "set_task_factory", "set_default_executor", "shutdown_default_executor", "shutdown_asyncgens",
)  # fmt: skip
"""What would stop or change the event loop for the other jobs too."""
LOOP_LOST = 71  # The exit code of a child whose event loop has ended under its jobs.


class Shared:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tasks: Mapping[str, Runnable],
        channel: SharedChannel,
        watchers: Watchers,
        start: ProcessStart,
        threads: Threads,
    ) -> None:
        self._threads = threads
        self._loop, self._tasks, self._channel, self._watchers, self._start = loop, tasks, channel, watchers, start
        self._pulse, self._copies_exit = Pulse(channel.stack), CopiesExit(channel.pid)
        self._outside = contextvars.copy_context()  # What is not a job's runs in here.
        self._seats: dict[int, Seat] = {}
        self._suspended: list[Seat] = []  # Kept: to free one would close its coroutines, and run their `finally`.
        self._leaving = False  # The supervisor sends no more.
        self._empty: Future[None] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._life: Task[None] | None = None
        self._opened: Future[Raised | None] | None = None

    async def serve(self, first: Run) -> None:
        """Run this job and those that come, until the supervisor sends no more and all have ended."""
        self._tick()
        self._channel.on_frames = self._take_frames
        self._loop.add_reader(self._channel.descriptor, self._read)
        self._begin(first)
        self._take_frames()  # What came with the first one.
        await self._empty
        self._closing.set()
        if self._life is not None:
            await self._life

    def _tick(self) -> None:
        self._pulse.tick()
        self._loop.call_later(protocol.TICK_S, self._tick)

    def _read(self) -> None:
        try:
            self._channel.read()
        except (SupervisorGone, ConnectionResetError):
            self._loop.remove_reader(self._channel.descriptor)
            self._leaving = True
            self._end_if_empty()

    def _take_frames(self) -> None:
        for run in self._channel.take_begun():  # First: a halt may have come right behind its job.
            self._begin(run)
        halts, self._channel.halts = self._channel.halts, []
        for halt in halts:
            self._halt(halt)

    def _halt(self, halt: Halt) -> None:
        """Cancel a job. One that is suspended stays where it is, and never goes on: another process has it."""
        if (seat := self._seats.get(halt.token)) is None:
            return
        if halt.suspended:
            self._suspended.append(self._seats.pop(halt.token))
            seat.suspend()
            self._end_if_empty()
        elif not seat.over:
            if halt.asks_stack:
                self._channel.send(Stack(halt.token, awaiting.stacks_of(seat.begun)))
            seat.halted = True
            seat.main.cancel()

    def _begin(self, run: Run) -> None:
        seat = self._seats[run.token] = Seat(run, self._channel.failures[run.source])
        inside = self._outside.copy()
        inside.run(seats.current.set, seat)
        seat.main = self._loop.create_task(self._perform(seat), context=inside)
        seat.main.add_done_callback(partial(self._ended, seat), context=self._outside)

    async def _perform(self, seat: Seat) -> Done:
        not_started = await asyncio.shield(self._open())
        done = await attempt_beside(
            self._tasks, seat.run, self._channel, watchers=self._watchers, not_started=not_started
        )
        seat.over = True
        await self._end_left(seat, done)
        return done

    def _ended(self, seat: Seat, main: Task[Done]) -> None:
        """Say how a job has ended. Its task may be cancelled before it begins, or while it waits for a lifespan."""
        returned = guarded(main.result)
        if isinstance(returned, Raised):
            returned = Done(seat.run.token, Outcome.FAILED, error=returned.summary(), stack=returned.stack())
        if seat.halted and returned.outcome is not Outcome.SUCCEEDED:
            took_s, changed = returned.took_s, returned.changed
            error = "the job was told to stop"
            returned = Done(seat.run.token, Outcome.RELEASED, error=error, took_s=took_s, changed=changed)
        if self._seats.pop(seat.run.token, None) is not None:
            self.say(seat, "", end=True)
            self._channel.send(returned)
            self._end_if_empty()

    async def _end_left(self, seat: Seat, done: Done) -> None:
        """Cancel the tasks that a job has left behind. If one of them does not end, this child takes no more jobs."""
        if left := [one for one in seat.begun if one is not seat.main]:
            names = ", ".join(sorted(one.get_name() for one in left)[:10])
            for one in left:
                one.cancel()
            _, stay = await asyncio.wait(left, timeout=LEFT_S)
            print(f"it has left {len(left)} tasks behind, which are cancelled: {names}", file=sys.stderr)
            if stay:
                done.changed = f"tasks: {len(stay)} that it has left behind go on although they are cancelled"
        if (stay_in_threads := self._threads.left_by(seat)) >= self._threads.spare:
            done.changed = f"threads: {stay_in_threads} calls that jobs have left behind go on in them"

    def _end_if_empty(self) -> None:
        if self._leaving and not self._seats and not self._empty.done():
            self._empty.set_result(None)

    # What jobs share

    def _open(self) -> Future[Raised | None]:
        """Open what the jobs of this child share, once. If that fails, jobs that come later try again."""
        if self._opened is None or (self._opened.done() and self._opened.result() is not None):
            self._opened = self._loop.create_future()
            life = Noted(self._live(self._opened), protocol.FOR_ALL, self._pulse, self._copies_exit)
            self._life = OwnTask(life, loop=self._loop, context=self._outside.copy())
        return self._opened

    async def _live(self, opened: Future[Raised | None]) -> None:
        """Open and close in one task: some libraries insist on that."""
        try:
            if self._start.due and (raised := self._start.run(self._channel.pid)) is not None:
                opened.set_result(raised)
                return
            async with AsyncExitStack() as stack:
                for one in self._start.lifespans:
                    await stack.enter_async_context(asynccontextmanager(one)())
                opened.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_result(Raised(error, " (in a lifespan, before the first job of its process)"))

    # What belongs to which job

    def make_task(self, loop: asyncio.AbstractEventLoop, code: Any, **options: Any) -> Task[Any]:
        context = options.get("context")
        seat = seats.current.get() if context is None else context.get(seats.current)
        if seat is None:
            return Task(code, loop=loop, **options)
        task = OwnTask(Noted(code, seat.run.token, self._pulse, self._copies_exit), loop=loop, **options)
        task.seat = seat
        seat.begun.add(task)
        task.add_done_callback(seat.begun.discard)
        return task

    def write(self, to_child: Callable[[str], int], text: str) -> int:
        """Standard output or error: what a job prints is its own, and the rest is the child's."""
        if (seat := seats.current.get()) is None:
            return to_child(text)
        self.say(seat, text)
        return len(text)

    def say(self, seat: Seat, text: str, *, end: bool = False) -> None:
        """A job prints. Whole lines are sent."""
        whole, cut, rest = (seat.partial + text).rpartition("\n")
        if end or len(rest) > protocol.MAX_PRINTED_BYTES // 8:
            whole, cut, rest = seat.partial + text, "", ""
        seat.partial = rest
        if whole or cut:
            self._send(seat, (whole + cut).encode(errors="backslashreplace"))

    def log(self, data: bytes) -> None:
        """A record is logged, by a job or by what jobs share."""
        if (seat := seats.current.get()) is None:
            _write_to_child(data)
        else:
            self._send(seat, data)

    def _send(self, seat: Seat, data: bytes) -> None:
        for start in range(0, len(data), protocol.MAX_PRINTED_BYTES):
            part = data[start : start + protocol.MAX_PRINTED_BYTES]
            self._channel.send(Printed(seat.run.token, part), now=True)


_write_to_child = log_records.write


def _loop() -> asyncio.AbstractEventLoop:
    """An event loop, uvloop's if that is installed, which no job can stop or change."""
    base: Any = asyncio.SelectorEventLoop
    try:
        import uvloop  # type: ignore[import-not-found, unused-ignore]  # It is optional.

        base = uvloop.Loop
    except ImportError:
        pass

    guards = {name: _for_all(name, getattr(base, name)) for name in FOR_ALL_JOBS}
    loop: asyncio.AbstractEventLoop = type("Loop", (base,), guards)()
    return loop


def _for_all(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def guard(loop: asyncio.AbstractEventLoop, *args: Any, **options: Any) -> Any:
        if seats.current.get() is not None:
            raise OutliveError(f"a job can't {name} the event loop that it shares with other jobs")
        return method(loop, *args, **options)

    return guard


def serve(tasks: Mapping[str, Runnable], first: Run, channel: Channel, watchers: Watchers, start: ProcessStart) -> int:
    """Go on as a shared child, with this job and those that come after it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Jobs are told to stop by `Halt`.
    loop = _loop()
    asyncio.set_event_loop(loop)
    shared_channel = SharedChannel(channel, loop)
    job_gateway.gateway = shared_channel
    threads = Threads(tasks[first.task].policy.share if first.task in tasks else 1)
    loop.set_default_executor(threads)
    shared = Shared(loop, tasks, shared_channel, watchers, start, threads)
    loop.set_task_factory(shared.make_task)
    streams: set[Any] = {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
    for stream in streams:  # They stay: handlers that the app has given to `logging` at its import have them.
        stream.write = partial(shared.write, stream.write)
    log_records.write = shared.log
    try:
        loop.run_until_complete(OwnTask(shared.serve(first), loop=loop))
    except BaseException as error:
        os.write(2, f"the event loop of the jobs has ended: {type(error).__name__}: {error}\n".encode())
        return LOOP_LOST
    shared_channel.flush_all()
    watchers.flush()
    return 0
