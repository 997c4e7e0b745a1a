"""Results of jobs: waiting for one, or for many at once.

What is done is written once, as a generator (`collect`) that yields statements to run and pauses to make. `finish` and
`afinish` do that, and differ only in how they wait. Inside a job, which has no session with the database, they poll.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast
from uuid import UUID

from outlive import store
from outlive.errors import JobFailed, JobNotFound, OutliveError
from outlive.statement import Statement
from outlive.states import OVER, State

if TYPE_CHECKING:
    from outlive.client.statement_runner import StatementRunner
    from outlive.model import JobOutcome

T = TypeVar("T")
Decode = Callable[[str, bytes], object]
"""Decodes a result as the task of this name is annotated."""
BATCH = 100
"""How many outcomes one statement reads: results may be large."""
MAX_PAUSE_S = 3600.0
NAMED = 5
"""How many unfinished jobs an error names."""


class Pause(NamedTuple):
    """Wait until one of the jobs that are left may have ended."""

    left: Collection[UUID]
    settled: Sequence[UUID]
    """Those that are not waited for any more since the last pause."""
    at_most_s: float


Steps = Generator[Statement[Any] | Pause, Any, T]


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


def collect(
    ids: Sequence[UUID], timeout: float | None, decode: Decode, return_exceptions: bool = False
) -> Steps[list[Any]]:
    """The results of these jobs, in their order. The last look is at the deadline."""
    deadline = None if timeout is None else time.monotonic() + timeout
    found: dict[UUID, Any] = {}
    left = dict.fromkeys(ids)
    looked_at: Collection[UUID] = list(left)
    while True:
        late = deadline is not None and time.monotonic() >= deadline
        settled = []
        looked_at = list(left) if late else [id for id in looked_at if id in left]
        for first in range(0, len(looked_at), BATCH):
            batch = looked_at[first : first + BATCH]
            outcomes = yield store.outcomes(batch)
            for id in batch:
                try:
                    value = _value(id, outcomes.get(id), decode)
                except OutliveError as error:
                    if not return_exceptions:
                        raise
                    value = error
                if value is not _NOT_YET:
                    found[id] = value
                    del left[id]
                    settled.append(id)
        if not left:
            return [found[id] for id in ids]
        if late:
            raise _too_late(list(left), len(ids), timeout)
        at_most_s = MAX_PAUSE_S if deadline is None else min(MAX_PAUSE_S, max(0.0, deadline - time.monotonic()))
        looked_at = yield Pause(left, settled, at_most_s)


_NOT_YET = object()


def _value(id: UUID, outcome: JobOutcome | None, decode: Decode) -> object:
    """The result of a job, or `_NOT_YET`. Raises if the job ended without one, or is gone."""
    if outcome is None:
        raise unknown(id)
    state, attempt = outcome.state, outcome.attempt
    if state not in OVER:
        return _NOT_YET
    if state is not State.SUCCEEDED or attempt is None:
        raise JobFailed(id, state, attempt)
    return None if attempt.result is None else decode(outcome.task, bytes(attempt.result))


def unknown(id: UUID) -> JobNotFound:
    return JobNotFound(f"there is no job {id}: it was pruned, or it is in another database")


def _too_late(left: list[UUID], of: int, timeout: float | None) -> TimeoutError:
    if of == 1:
        return TimeoutError(f"job {left[0]} did not finish within {timeout:g} s")
    named = ", ".join(map(str, left[:NAMED])) + (f" and {len(left) - NAMED:,} more" if len(left) > NAMED else "")
    return TimeoutError(f"{len(left):,} of {of:,} jobs did not finish within {timeout:g} s: {named}")


def finish(runner: StatementRunner, steps: Steps[T]) -> T:
    """Run the steps to their end."""
    import threading  # Here and not at the top: a job's process that does not need it must not load it.

    bell = threading.Event()
    waiter: Waiter | None = None
    try:
        step = next(steps)
        while True:
            if isinstance(step, Statement):
                step = steps.send(runner.run(step))
                continue
            if waiter is None:
                waiter = runner.wait_for(step.left, bell.set)
            else:
                waiter.settle(step.settled)
            bell.wait(waiter.pause_s(step.at_most_s))
            bell.clear()
            step = steps.send(waiter.take())
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        if waiter is not None:
            waiter.leave()


async def afinish(runner: StatementRunner, steps: Steps[T]) -> T:
    """The async twin of `finish`."""
    import asyncio  # As above.

    bell, loop = asyncio.Event(), asyncio.get_running_loop()
    waiter: Waiter | None = None
    try:
        step = next(steps)
        while True:
            if isinstance(step, Statement):
                step = steps.send(await runner.arun(step))
                continue
            if waiter is None:
                waiter = runner.wait_for(step.left, lambda: loop.call_soon_threadsafe(bell.set))
            else:
                waiter.settle(step.settled)
            try:
                async with asyncio.timeout(waiter.pause_s(step.at_most_s)):
                    await bell.wait()
            except TimeoutError:
                pass
            bell.clear()
            step = steps.send(waiter.take())
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        if waiter is not None:
            waiter.leave()
