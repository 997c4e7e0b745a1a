"""What the dashboard keeps: the last hour, day and week in steps of time, and counts that are costly to make.

The database is asked for the newest steps only; older ones don't change. It keeps no record of how many jobs waited,
so the dashboard notes that itself while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from outlive import store
from outlive.dashboard.database import Database
from outlive.errors import OutliveError
from outlive.statement import Statement
from outlive.store.charts import StepTimes

DEPTH_S = 5.0
LOOK_S = 1.0
"""How often an open page looks at what it shows."""
MOST_LANES = 1000
MOST_TASKS = 1000
SLOW_S = 0.03
AT_ONCE = 12
"""How many steps of a chart one statement reads: where the machine is busy, each must end in time."""
OLD_S = 30.0
T = TypeVar("T")


class Span(msgspec.Struct, frozen=True):
    """A time that charts show, in steps. `ticks` are the words at its begin and in its middle."""

    steps: int
    step_s: int
    step: str
    ticks: tuple[str, str]


SPANS = {
    "hour": Span(60, 60, "minute", ("1 h ago", "30 min")),
    "day": Span(48, 1800, "half hour", ("1 d ago", "12 h")),
    "week": Span(56, 10_800, "three hours", ("7 d ago", "3 d 12 h")),
}

_log = logging.getLogger("outlive.dashboard")


class Depth(msgspec.Struct, frozen=True):
    """How many jobs there were at a moment of the database's clock."""

    at: datetime
    ready: int
    running: int
    ready_estimated: bool


class KeptAnswer(Generic[T]):
    """The answer to a statement: asked again after ten times as long as it took, or half a second if that is longer."""

    def __init__(self, database: Database, statement: Statement[T]) -> None:
        self._database, self._statement = database, statement
        self._answer: T | None = None
        self._at = self._took_s = 0.0
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        age_s = time.monotonic() - self._at
        if self._answer is not None and age_s < max(LOOK_S / 2, 10 * self._took_s):
            return self._answer
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        if self._answer is not None and age_s < OLD_S and self._took_s > SLOW_S:
            self._asking.add_done_callback(_forget)
            return self._answer  # The next look gets the new one.
        return await asyncio.shield(self._asking)

    async def stop(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _ask(self) -> T:
        began = time.monotonic()
        self._answer = await self._database.run(self._statement)
        self._at = time.monotonic()
        self._took_s = self._at - began
        return self._answer


def _forget(task: asyncio.Task[Any]) -> None:
    """Take a failure that no page waits for: the next look asks again."""
    if not task.cancelled():
        task.exception()


class Course:
    """What ended in a span of time, by outcome, and how long jobs took, by the begin of each step."""

    def __init__(self, database: Database, span: Span) -> None:
        self._database, self.span = database, span
        self.ends: dict[datetime, dict[str, float]] = {}
        self.times: dict[datetime, StepTimes] = {}
        self._looked_at: float | None = None
        self._lock = asyncio.Lock()

    def steps(self) -> list[datetime]:
        """The steps, the oldest first."""
        return sorted(self.ends)[-self.span.steps :]

    async def refresh(self) -> None:
        async with self._lock:
            span, passed_s = self.span, None if self._looked_at is None else time.monotonic() - self._looked_at
            if passed_s is not None and passed_s < min(OLD_S, span.step_s / 60):
                return
            # The step before is read again: an attempt that ended in it may have been committed since.
            steps = span.steps if passed_s is None else min(span.steps, int(passed_s // span.step_s) + 2)
            for past in range(0, steps + 1, AT_ONCE):
                part = {"steps": min(steps, past + AT_ONCE - 1), "past": past, "step_s": span.step_s}
                ends = await self._database.run(store.ends_by_step(**part))
                times = await self._database.run(store.times_by_step(**part))
                self.ends.update(ends)
                self.times.update({one.at: one for one in times})
            oldest = max(self.ends) - timedelta(seconds=span.steps * span.step_s)
            self.ends = {at: counts for at, counts in self.ends.items() if at > oldest}
            self.times = {at: one for at, one in self.times.items() if at > oldest}
            self._looked_at = time.monotonic()


class Answers:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[str, KeptAnswer[Any]] = {}
        self.courses = {name: Course(database, span) for name, span in SPANS.items()}
        self.depths: deque[Depth] = deque(maxlen=int(3600 / DEPTH_S))
        self._noting: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._noting is None or self._noting.done():
            self._noting = asyncio.get_running_loop().create_task(self._note_depths())

    async def stop(self) -> None:
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait([self._noting])
        for kept in list(self._kept.values()):
            await kept.stop()

    async def ask(self, statement: Statement[T]) -> T:
        """The answer to a statement that is always asked with the same parameters: a new one, or one that was kept."""
        kept: KeptAnswer[T] = self._kept.setdefault(statement.name, KeptAnswer(self._database, statement))
        return await kept.get()

    async def _note_depths(self) -> None:
        while True:
            try:
                await self.note_depth()
                await self.ask(store.count_jobs())
                await self.courses["hour"].refresh()
            except OutliveError as error:
                _log.debug("the number of waiting jobs can't be read: %s", error)
            await asyncio.sleep(DEPTH_S)

    async def note_depth(self) -> None:
        rows = await self.ask(store.list_queues())
        now = datetime.fromtimestamp(await self._database.run(store.clock()), UTC)
        ready, running = (int(sum(row[key] for row in rows)) for key in ("ready", "running"))
        rough = any(row["ready_estimated"] for row in rows)
        self.depths.append(Depth(now, ready, running, ready_estimated=rough))
