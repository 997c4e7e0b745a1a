"""Results of jobs: waiting for one, or for many at once.

`_steps` yields statements to run and pauses to make; `collect` and `acollect` differ only in how they carry them out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import program, store
from outlive.client import redirection
from outlive.errors import JobFailed, OutliveError, no_job
from outlive.humanize import duration
from outlive.statement import Row, Statement, acarry_out, carry_out
from outlive.states import OVER, State

if TYPE_CHECKING:
    from outlive.client.app import App
    from outlive.client.waiting import Waiter
    from outlive.model import JobOutcome

BATCH = 100
"""How many outcomes one statement reads: results may be large."""
MAX_PAUSE_S = 3600.0
LOOK_S = 0.5
"""How long a look may take at least, also one at the deadline."""
NAMED = 5
"""How many unfinished jobs an error names."""
SILENT = "the database does not answer"


class Wanted:
    """The jobs whose results are wanted, and how. `left` are the unfinished ones."""

    def __init__(self, app: App, ids: Sequence[UUID], timeout_s: float | None, return_exceptions: bool) -> None:
        self.app, self.ids, self.timeout_s, self.return_exceptions = app, ids, timeout_s, return_exceptions
        self.deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self.left = dict.fromkeys(ids)

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def until(self) -> float | None:
        """When (monotonic) a look that begins now is given up."""
        return None if self.timeout_s is None else max(self.deadline, time.monotonic() + LOOK_S)

    def too_late(self, reason: str) -> TimeoutError:
        left, timeout, why = list(self.left), self.timeout_s, f"; {reason}" if reason else ""
        if len(self.ids) == 1:
            return TimeoutError(f"job {left[0]} did not finish within {timeout:g} s{why}")
        named = ", ".join(map(str, left[:NAMED])) + (f" and {len(left) - NAMED:,} more" if len(left) > NAMED else "")
        unfinished = f"{len(left):,} of {len(self.ids):,} jobs did not finish"
        return TimeoutError(f"{unfinished} within {timeout:g} s: {named}{why}")


def collect(app: App, ids: Sequence[UUID], timeout_s: float | None, return_exceptions: bool) -> list[Any]:
    """The results of these jobs, in their order."""
    import threading  # Here and not at the top: a job's process that does not need it must not load it.

    wanted, runner, bell = Wanted(app, ids, timeout_s, return_exceptions), app.runner, threading.Event()

    def carry(step: Statement[Any] | float) -> object:
        if isinstance(step, Statement):
            with suppress(TimeoutError):  # As the context of another error it would keep frames with connections alive.
                return runner.read(step, wanted.until())
            raise wanted.too_late(SILENT)
        bell.wait(step)
        bell.clear()
        return None

    return carry_out(_steps(wanted, lambda left: runner.wait_for(left, bell.set)), carry)


async def acollect(app: App, ids: Sequence[UUID], timeout_s: float | None, return_exceptions: bool) -> list[Any]:
    """The async twin of `collect`."""
    import asyncio  # As above.

    wanted, runner = Wanted(app, ids, timeout_s, return_exceptions), app.runner
    bell, loop = asyncio.Event(), asyncio.get_running_loop()
    ring = partial(loop.call_soon_threadsafe, bell.set)

    async def carry(step: Statement[Any] | float) -> object:
        if isinstance(step, Statement):
            with suppress(TimeoutError):
                return await runner.aread(step, wanted.until())
            raise wanted.too_late(SILENT)
        with suppress(TimeoutError):
            async with asyncio.timeout(step):
                await bell.wait()
        bell.clear()
        return None

    return await acarry_out(_steps(wanted, lambda left: runner.wait_for(left, ring)), carry)


def _steps(
    wanted: Wanted, wait_for: Callable[[Collection[UUID]], Waiter | None]
) -> Generator[Statement[Any] | float, Any, list[Any]]:
    """Yields statements, whose answers are sent back, and seconds to wait for the bell.

    The last look is at the deadline. Without a waiter, all jobs are looked at, often at first and then less often.
    """
    found: dict[UUID, Any] = {}
    left = wanted.left
    looked_at: Collection[UUID] = list(left)
    waiter: Waiter | None = None
    poll_s = 0.005
    try:
        while True:
            late = wanted.left_s() <= 0
            settled = yield from _settled(list(left) if late else [id for id in looked_at if id in left], wanted)
            found |= settled
            for id in settled:
                del left[id]
            if not left:
                return [found[id] for id in wanted.ids]
            if late:
                raise wanted.too_late(_why((yield store.unfinished(list(left)[:NAMED]))))
            if waiter := waiter or wait_for(left):
                waiter.settle(settled)
                yield max(0.0, min(MAX_PAUSE_S, wanted.left_s()))
                looked_at = waiter.take()
            else:
                yield max(0.0, min(poll_s, wanted.left_s()))
                looked_at, poll_s = list(left), min(poll_s * 1.5, 0.5)
    finally:
        if waiter is not None:
            waiter.settle(list(waiter.left))


def _why(unfinished: list[Row]) -> str:
    """What these jobs wait for, or the tasks among theirs that no active worker runs."""
    waiting = [state in (State.PENDING, State.RETRYABLE) and due_in_s > 0 for _, state, _, due_in_s, _ in unfinished]
    if redirection.database_url is not None and any(waiting):
        return "in this test it waits for its time, or for its retry: outlive_jobs.run(delayed=True) runs it"
    if unserved := {task: None for task, *_, served in unfinished if not served}:
        return f"no active worker has the task or serves the queue of: {', '.join(unserved)}"
    said: dict[str, None] = {}
    for _, state, details, due_in_s, _ in unfinished:
        due = f"due in {duration(due_in_s)}" if state in (State.PENDING, State.RETRYABLE) and due_in_s > 0 else ""
        said[": ".join(filter(None, (state, details or due)))] = None
    return "; ".join(said)


def _settled(ids: Sequence[UUID], wanted: Wanted) -> Generator[Statement[Any], Any, dict[UUID, Any]]:
    """The results of those jobs among these that have ended."""
    settled: dict[UUID, Any] = {}
    for first in range(0, len(ids), BATCH):
        batch = ids[first : first + BATCH]
        outcomes = yield store.outcomes(batch)
        for id in batch:
            try:
                value = _value(id, outcomes.get(id), wanted.app)
            except OutliveError as error:
                if not wanted.return_exceptions:
                    raise
                value = error
            if value is not _NOT_YET:
                settled[id] = value
    return settled


_NOT_YET = object()


def _value(id: UUID, outcome: JobOutcome | None, app: App) -> object:
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
        return app.decode_result(outcome.task, bytes(attempt.result))
    except (msgspec.MsgspecError, RecursionError) as error:  # Clients in other languages can store any JSON.
        why = f"job {id} has succeeded, but its result can't be read as JSON ({error})"
        raise OutliveError(f"{why}; `{program.command(f'show {id}')}` prints it") from None
