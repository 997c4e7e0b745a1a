"""A handle on a job: its state, its result, and cancelling it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast
from uuid import UUID

from outlive import store, wire
from outlive.client.statement_runner import StatementRunner
from outlive.errors import JobFailed, JobNotFound
from outlive.model import Attempt, Change
from outlive.states import FINISHED, State

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """A handle holds only the job's id. Each call asks the database."""

    id: UUID
    _runner: StatementRunner = field(repr=False, compare=False)

    def status(self) -> State:
        return self._state(self._runner.run(store.statuses([self.id])))

    async def astatus(self) -> State:
        return self._state(await self._runner.arun(store.statuses([self.id])))

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result. JobFailed if the job ended without one, TimeoutError if it is not finished in time."""
        for pause_s in pauses(timeout):
            if (ended := self._ended(self._runner.run(store.outcome(self.id)))) is not None:
                return self._value(*ended)
            time.sleep(pause_s)
        raise self._too_late(timeout)

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  # the twin of result
        import asyncio  # Here and not at the top: a job's process that does not need it must not load it.

        for pause_s in pauses(timeout):
            if (ended := self._ended(await self._runner.arun(store.outcome(self.id)))) is not None:
                return self._value(*ended)
            await asyncio.sleep(pause_s)
        raise self._too_late(timeout)

    def cancel(self) -> bool:
        """Cancel the job; if it runs, its worker stops it. False if the job was already finished."""
        return self._cancelled(self._runner.run(store.cancel([self.id])))

    async def acancel(self) -> bool:
        return self._cancelled(await self._runner.arun(store.cancel([self.id])))

    def _state(self, states: dict[UUID, State]) -> State:
        if self.id not in states:
            raise self._unknown()
        return states[self.id]

    def _ended(self, found: tuple[State, Attempt | None] | None) -> tuple[State, Attempt | None] | None:
        if found is None:
            raise self._unknown()
        return found if found[0] in FINISHED or found[0] is State.QUARANTINED else None

    def _value(self, state: State, attempt: Attempt | None) -> R:
        if state is not State.SUCCEEDED or attempt is None:
            raise JobFailed(self.id, state, attempt)
        return cast("R", None if attempt.result is None else wire.decode(bytes(attempt.result)))

    def _cancelled(self, changes: list[Change]) -> bool:
        if not changes:
            raise self._unknown()
        return changes[0].changed

    def _unknown(self) -> JobNotFound:
        return JobNotFound(f"there is no job {self.id}: it was pruned, or it is in another database")

    def _too_late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"job {self.id} did not finish within {timeout:g} s")


def pauses(timeout: float | None) -> Iterator[float]:
    """The pauses between looks: short at first, then longer. The last look is at the deadline."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause_s = 0.005
    while True:
        left_s = pause_s if deadline is None else deadline - time.monotonic()
        yield max(0.0, min(pause_s, left_s))
        if left_s <= 0:
            return
        pause_s = min(pause_s * 1.5, 0.5)
