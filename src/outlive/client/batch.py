"""Batches: jobs that are counted together, with jobs that are enqueued when all of them have ended.

with app.batch("import", on_success=publish.job(7)) as batch:
    mine = load.using(batch=batch)
    app.enqueue_stream(mine.job(n) for n in range(1_000_000))
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from outlive import store
from outlive.client.statement_runner import StatementRunner
from outlive.errors import no_batch
from outlive.model import BatchCounts
from outlive.statement import Statement
from outlive.validation import refused

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """A handle on a batch. It holds only the batch's id, and each call asks the database."""

    id: UUID
    """The batch's id."""
    _runner: StatementRunner = field(repr=False, compare=False)
    _connection: Any = field(default=None, repr=False, compare=False)

    def counts(self) -> BatchCounts:
        """How many jobs the batch has, and how many of them have ended in which way."""
        return self._found(self._run(store.batch_counts(self.id)))

    async def acounts(self) -> BatchCounts:
        """The async twin of `counts`."""
        return self._found(await self._arun(store.batch_counts(self.id)))

    def progress(self) -> float:
        """How many of its jobs have ended, from 0 to 1."""
        return self.counts().progress

    async def aprogress(self) -> float:
        """The async twin of `progress`."""
        return (await self.acounts()).progress

    def done(self) -> bool:
        """Whether it is closed and all its jobs have ended."""
        return self._found(self._run(store.batch_done(self.id)))

    async def adone(self) -> bool:
        """The async twin of `done`."""
        return self._found(await self._arun(store.batch_done(self.id)))

    def wait(self, timeout: float | None = None) -> BatchCounts:
        """Wait until it is done. TimeoutError if it is not done in time."""
        for pause_s in _pauses(timeout):
            if self.done():
                return self.counts()
            time.sleep(pause_s)
        raise self._too_late(timeout)

    async def await_(self, timeout: float | None = None) -> BatchCounts:  # noqa: ASYNC109
        """The async twin of `wait`."""
        import asyncio  # Here and not at the top: a job's process that does not need it must not load it.

        for pause_s in _pauses(timeout):
            if await self.adone():
                return await self.acounts()
            await asyncio.sleep(pause_s)
        raise self._too_late(timeout)

    def close(self) -> None:
        """No more jobs come, except from its own: it is done when all have ended. The end of `with` calls this."""
        self._run(store.close_batch(self.id))

    async def aclose(self) -> None:
        """The async twin of `close`."""
        await self._arun(store.close_batch(self.id))

    def cancel(self) -> None:
        """Close it, and cancel its jobs, some hundreds in each transaction. Workers stop those that run."""
        self._run(store.close_batch(self.id, cancelling=True))
        past = self._run(store.cancel_batch(self.id))
        while past is not None:
            past = self._run(store.cancel_batch(self.id, past))

    async def acancel(self) -> None:
        """The async twin of `cancel`."""
        await self._arun(store.close_batch(self.id, cancelling=True))
        past = await self._arun(store.cancel_batch(self.id))
        while past is not None:
            past = await self._arun(store.cancel_batch(self.id, past))

    def _run(self, one: Statement[T]) -> T:
        return self._runner.run(one, self._connection)

    async def _arun(self, one: Statement[T]) -> T:
        return await self._runner.arun(one, self._connection)

    def _found(self, found: T | None) -> T:
        if found is None:
            raise no_batch(self.id)
        return found

    def _too_late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"batch {self.id} was not done within {timeout:g} s")


@dataclass(frozen=True, slots=True)
class BatchBlock:
    """The block of `with app.batch(…)`. If it raises, the batch stays open."""

    _batch: Batch
    _opening: Statement[UUID]

    def __enter__(self) -> Batch:
        self._batch._run(self._opening)
        return self._batch

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._batch.close()

    async def __aenter__(self) -> Batch:
        await self._batch._arun(self._opening)
        return self._batch

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._batch.aclose()


def batch_id(name: str, value: object) -> str:
    """The id of a batch, as the links of a job have it."""
    id = value.id if isinstance(value, Batch) else value
    if not isinstance(id, UUID):
        raise refused(name, value, "a batch or its uuid.UUID")
    return str(id)


def _pauses(timeout: float | None) -> Iterator[float]:
    """The pauses between looks: short at first, then longer. The last look is at the deadline."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause_s = 0.005
    while True:
        left_s = pause_s if deadline is None else deadline - time.monotonic()
        yield max(0.0, min(pause_s, left_s))
        if left_s <= 0:
            return
        pause_s = min(pause_s * 1.5, 0.5)
