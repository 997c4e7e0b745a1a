"""Results of jobs: waiting for one, or for many at once.

What is done is written once, as a generator (`_steps`) that yields statements to run and pauses to make. `collect` and
`acollect` carry them out, and differ only in how they wait. A job has no session with the database, so it polls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import UUID

import msgspec

from outlive import program, store
from outlive.errors import JobFailed, OutliveError, no_job
from outlive.statement import Statement
from outlive.states import OVER, State

if TYPE_CHECKING:
    from outlive.client.statement_runner import StatementRunner
    from outlive.model import JobOutcome

Decode = Callable[[str, bytes], object]
"""Decodes a result as the task of this name is annotated."""
BATCH = 100
"""How many outcomes one statement reads: results may be large."""
MAX_PAUSE_S = 3600.0
LOOK_S = 0.5
"""How long a look may take at least, also one at the deadline."""
NAMED = 5
"""How many unfinished jobs an error names."""


class Waiter(Protocol):
    """A call that waits for jobs, as client/waiting.py has it."""

    def pause_s(self, at_most_s: float) -> float: ...
    def take(self) -> set[UUID]: ...
    def settle(self, ids: Iterable[UUID]) -> None: ...
    def leave(self) -> None: ...


class Polling:
    """A waiter inside a job: it looks at all its jobs, often at first and then less often."""

    def __init__(self, ids: Iterable[UUID]) -> None:
        self._left = set(ids)
        self._pause_s = 0.005

    def pause_s(self, at_most_s: float) -> float:
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 1.5, 0.5)
        return min(pause_s, at_most_s)

    def take(self) -> set[UUID]:
        return set(self._left)

    def settle(self, ids: Iterable[UUID]) -> None:
        self._left.difference_update(ids)

    def leave(self) -> None:
        pass


class Wanted:
    """The jobs whose results are wanted, and how."""

    def __init__(
        self, ids: Sequence[UUID], timeout_s: float | None, decode: Decode, return_exceptions: bool = False
    ) -> None:
        self.ids, self.timeout_s, self.decode, self.return_exceptions = ids, timeout_s, decode, return_exceptions
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def pause_s(self) -> float:
        """How long to wait for the bell, at most."""
        return MAX_PAUSE_S if self.deadline is None else min(MAX_PAUSE_S, max(0.0, self.deadline - time.monotonic()))

    def until(self) -> float | None:
        """When (monotonic) a look that begins now is given up."""
        return None if self.deadline is None else max(self.deadline, time.monotonic() + LOOK_S)


class _NoAnswer(Exception):
    """The database did not answer in time."""


def collect(runner: StatementRunner, wanted: Wanted) -> list[Any]:
    """The results of these jobs, in their order."""
    import threading  # Here and not at the top: a job's process that does not need it must not load it.

    bell = threading.Event()
    with closing(_steps(wanted, lambda left: runner.wait_for(left, bell.set))) as steps:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Statement):
                    try:
                        answer = runner.read(step, wanted.until())
                    except TimeoutError:
                        step = steps.throw(_NoAnswer)
                    else:
                        step = steps.send(answer)
                else:
                    bell.wait(step)
                    bell.clear()
                    step = next(steps)
        except StopIteration as end:
            return cast("list[Any]", end.value)


async def acollect(runner: StatementRunner, wanted: Wanted) -> list[Any]:
    """The async twin of `collect`."""
    import asyncio  # As above.

    bell, loop = asyncio.Event(), asyncio.get_running_loop()
    ring = partial(loop.call_soon_threadsafe, bell.set)
    with closing(_steps(wanted, lambda left: runner.wait_for(left, ring))) as steps:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Statement):
                    try:
                        answer = await runner.aread(step, wanted.until())
                    except TimeoutError:
                        step = steps.throw(_NoAnswer)
                    else:
                        step = steps.send(answer)
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(step):
                            await bell.wait()
                    bell.clear()
                    step = next(steps)
        except StopIteration as end:
            return cast("list[Any]", end.value)


def _steps(
    wanted: Wanted, wait_for: Callable[[Collection[UUID]], Waiter]
) -> Generator[Statement[Any] | float, Any, list[Any]]:
    """Statements, whose answers are sent back, and seconds to wait for the bell. The last look is at the deadline."""
    found: dict[UUID, Any] = {}
    left = dict.fromkeys(wanted.ids)
    looked_at: Collection[UUID] = list(left)
    waiter: Waiter | None = None
    try:
        while True:
            late = wanted.late()
            looked_at = list(left) if late else [id for id in looked_at if id in left]
            settled = yield from _settled(looked_at, wanted)
            found |= settled
            for id in settled:
                del left[id]
            if not left:
                return [found[id] for id in wanted.ids]
            if late:
                unserved = yield store.unserved_tasks(list(left)[:NAMED])
                named = f"no active worker has the task or serves the queue of: {', '.join(unserved)}"
                raise _too_late(list(left), wanted, named if unserved else "")
            if waiter is None:
                waiter = wait_for(left)
            else:
                waiter.settle(settled)
            yield waiter.pause_s(wanted.pause_s())
            looked_at = waiter.take()
    except _NoAnswer:
        raise _too_late(list(left), wanted, "the database does not answer") from None
    finally:
        if waiter is not None:
            waiter.leave()


def _settled(ids: Sequence[UUID], wanted: Wanted) -> Generator[Statement[Any], Any, dict[UUID, Any]]:
    """The results of those jobs among these that have ended."""
    settled: dict[UUID, Any] = {}
    for first in range(0, len(ids), BATCH):
        batch = ids[first : first + BATCH]
        outcomes = yield store.outcomes(batch)
        for id in batch:
            try:
                value = _value(id, outcomes.get(id), wanted.decode)
            except OutliveError as error:
                if not wanted.return_exceptions:
                    raise
                value = error
            if value is not _NOT_YET:
                settled[id] = value
    return settled


_NOT_YET = object()


def _value(id: UUID, outcome: JobOutcome | None, decode: Decode) -> object:
    """The result of a job, or `_NOT_YET`. Raises if the job ended without one, or is gone."""
    if outcome is None:
        raise no_job(id)
    state, attempt = outcome.state, outcome.attempt
    if state not in OVER:
        return _NOT_YET
    if state is not State.SUCCEEDED or attempt is None:
        raise JobFailed(id, state, attempt)
    if attempt.result is None:
        return None
    try:
        return decode(outcome.task, bytes(attempt.result))
    except (msgspec.MsgspecError, RecursionError) as error:  # Clients in other languages can store any JSON.
        why = f"job {id} has succeeded, but its result can't be read as JSON ({error})"
        raise OutliveError(f"{why}; `{program.command(f'show {id}')}` prints it") from None


def _too_late(left: list[UUID], wanted: Wanted, reason: str) -> TimeoutError:
    timeout, of = wanted.timeout_s, len(wanted.ids)
    why = f"; {reason}" if reason else ""
    if of == 1:
        return TimeoutError(f"job {left[0]} did not finish within {timeout:g} s{why}")
    named = ", ".join(map(str, left[:NAMED])) + (f" and {len(left) - NAMED:,} more" if len(left) > NAMED else "")
    return TimeoutError(f"{len(left):,} of {of:,} jobs did not finish within {timeout:g} s: {named}{why}")
