"""The jobs of a shared child, each in its seat, and what the supervisor sees of them from outside."""

from __future__ import annotations

import mmap
from asyncio import Semaphore, Task, get_running_loop
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from outlive import protocol
from outlive.child.boundary import CopiesExit
from outlive.protocol import Done, Run

CALLS_AT_ONCE = 4  # For one job. The supervisor kills a child that has eight calls under way for each of its seats.


class Pulse:
    """What the supervisor sees of this process while it is blocked, or dead: a page of memory that both have."""

    def __init__(self, file: int) -> None:
        self._cells = memoryview(mmap.mmap(file, protocol.PULSE.size)).cast("q")

    def tick(self) -> None:
        self._cells[0] += 1

    def run(self, token: int) -> None:
        """The code of this attempt runs. Many that run in turn don't block the loop, so this is a tick too."""
        self._cells[0] += 1
        self._cells[1] = self._cells[2] = token

    def rest(self) -> None:
        """That of none does."""
        self._cells[1] = 0


class Seat:
    """One job in a shared child."""

    __slots__ = ("asks", "begun", "calls", "failures", "halted", "in_threads", "main", "over", "partial", "run")

    def __init__(self, run: Run, failures: int) -> None:
        self.run = run
        self.failures = failures  # How often its source had failed in this process when it came.
        self.main: Task[Done]
        self.asks: Task[Any] | None = None  # The task in which it waits outside of this process, if it does.
        self.begun: set[Task[Any]] = set()  # The tasks that it has begun, until they end.
        self.calls = Semaphore(CALLS_AT_ONCE)
        self.in_threads: set[Future[Any]] = set()  # Its calls that are under way in threads.
        self.halted = self.over = False  # It was told to stop; it has returned.
        self.partial = ""  # What it has printed since its last line break.

    def suspend(self) -> None:
        """Cancel what runs beside its wait. What waits stays as it is: it goes on in another process."""
        for one in list(self.begun):
            if one is self.main or one is self.asks:
                one.get_coro().stays = True  # type: ignore[union-attr]
            else:
                one.cancel()


current: ContextVar[Seat | None] = ContextVar("current", default=None)


class Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Some are spare: a call can't be cancelled, and may outlast its job."""

    def __init__(self, share: int) -> None:
        super().__init__(2 * share, "job")
        self.spare = share
        self._left: set[Future[Any]] = set()

    def submit(self, code: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        call = super().submit(code, *args, **named)
        if (seat := current.get()) is not None:
            seat.in_threads.add(call)
            call.add_done_callback(seat.in_threads.discard)
        return call

    def left_by(self, seat: Seat) -> int:
        """A job has ended. Returns how many calls go on now that jobs have left behind."""
        for call in list(seat.in_threads):
            self._left.add(call)
            call.add_done_callback(self._left.discard)
        return len(self._left)


class OwnTask(Task[Any]):
    """A task of a job, or of what runs all of them. Other jobs can't cancel it: some code cancels all that it finds."""

    seat: Seat | None = None

    def cancel(self, msg: Any = None) -> bool:
        by = current.get()
        return (by is None or by is self.seat) and super().cancel(msg)


class Noted(Coroutine[Any, Any, Any]):
    """A coroutine of a job, or of what its jobs share. The supervisor can see from outside when its code runs."""

    __slots__ = ("_code", "_copies_exit", "_pulse", "_token", "stays")

    def __init__(self, code: Coroutine[Any, Any, Any], token: int, pulse: Pulse, copies_exit: CopiesExit) -> None:
        self._code, self._token, self._pulse, self._copies_exit = code, token, pulse, copies_exit
        self.stays = False  # It never goes on, whatever is sent or thrown: a timer of the job may cancel it.

    def send(self, value: Any) -> Any:
        return self._step(self._code.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._code.throw, *error)

    def _step(self, go_on: Any, *given: Any) -> Any:
        if self.stays:
            return next(get_running_loop().create_future().__await__())
        self._pulse.run(self._token)
        try:
            with self._copies_exit:  # A copy that the code forks must not go on with the jobs of others.
                return go_on(*given)
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the loop for it.
            raise RuntimeError(f"a task of the job raised {type(error).__name__}: {error}") from error
        finally:
            self._pulse.rest()

    def close(self) -> None:
        self._code.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._code.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)  # What shows a task reads cr_frame and others.
