"""The counters of a worker: plain numbers, which the hot path raises and a scrape copies.

Times are counted many at once, mostly by functions in C. For each job the hot path does no more than it must.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from outlive.metrics.catalogue import BUCKETS_S, CRASHES, JOB_RUN, JOB_WAIT, JOBS_ENDED
from outlive.metrics.exposition import Figures
from outlive.model import Claimed, Ended
from outlive.states import Outcome

MAX_SERIES = 300
"""How many tasks, and how many pairs of a task and a queue, are counted by themselves. The others are `other`."""
OTHER = "other"
AT_ONCE = 256
_CRASHED = frozenset({Outcome.CRASHED, Outcome.OUT_OF_MEMORY})


def bounded(counters: Mapping[str, object], key: str) -> str:
    """The key under which something is counted: `other` if there are too many."""
    return key if key in counters or len(counters) < MAX_SERIES else OTHER


class Clock(Protocol):
    @property
    def clock_offset_s(self) -> float | None:
        """The database's clock minus this process' monotonic clock; None if it is not known yet."""


class Times:
    """A histogram."""

    def __init__(self) -> None:
        self.buckets, self.sum_s = [0] * (len(BUCKETS_S) + 1), 0.0

    def add(self, times_s: list[float], offset_s: float = 0.0) -> None:
        """Add these times, each of them longer by an offset."""
        times_s.sort()
        below = 0
        for n, bound_s in enumerate(BUCKETS_S):
            upto = bisect_right(times_s, bound_s - offset_s)
            self.buckets[n] += upto - below
            below = upto
        self.buckets[-1] += len(times_s) - below
        self.sum_s += max(0.0, sum(times_s) + len(times_s) * offset_s)


class _Series:
    """The attempts of one task in one queue."""

    def __init__(self, runs: Times) -> None:
        self.runs = runs
        self.ended = dict.fromkeys(Outcome, 0)
        self.successes_s: list[float] = []
        """How long each success ran that is not counted yet."""

    def count(self) -> None:
        self.ended[Outcome.SUCCEEDED] += len(self.successes_s)
        self.runs.add(self.successes_s)
        self.successes_s = []


class Tallies:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._series: dict[tuple[str, str], _Series] = {}
        self._waits: dict[str, Times] = {}
        self._runs: dict[str, Times] = {}
        self._crashes: Counter[tuple[str, str]] = Counter()

    def claimed(self, jobs: Sequence[Claimed], since: float) -> None:
        """Count how long jobs have waited that were claimed at this monotonic time."""
        if (clock_offset_s := self._clock.clock_offset_s) is None:
            return
        first = jobs[0].ready_at  # Differences are much cheaper than timestamps.
        offset_s = since + clock_offset_s - first.timestamp()
        for task in {job.task for job in jobs}:
            times = self._waits.setdefault(bounded(self._waits, task), Times())
            times.add([(first - job.ready_at).total_seconds() for job in jobs if job.task == task], offset_s)

    def ended(self, job: Claimed, end: Ended) -> None:
        """Count an attempt that has ended."""
        series = self._series.get((job.task, job.queue)) or self._add(job.task, job.queue)
        if end.outcome is Outcome.SUCCEEDED and end.took_s is not None:
            series.successes_s.append(end.took_s)
            if len(series.successes_s) >= AT_ONCE:
                series.count()
            return
        series.ended[end.outcome] += 1
        if end.took_s is not None:  # Otherwise it had not begun.
            series.runs.add([end.took_s])
        if end.outcome in _CRASHED:
            self._crashes[bounded(self._runs, job.task), end.signal or "none"] += 1

    def _add(self, task: str, queue: str) -> _Series:
        if len(self._series) >= MAX_SERIES:
            task = queue = OTHER
        runs = self._runs.setdefault(task, Times())
        return self._series.setdefault((task, queue), _Series(runs))

    def figures(self) -> Figures:
        """A copy, which does not change while its text is made."""
        for series in self._series.values():
            series.count()
        return {
            JOBS_ENDED: [
                ((task, queue, outcome), count)
                for (task, queue), series in self._series.items()
                for outcome, count in series.ended.items()
            ],
            JOB_WAIT: _spread(self._waits),
            JOB_RUN: _spread(self._runs),
            CRASHES: list(self._crashes.items()),
        }


def _spread(times: Mapping[str, Times]) -> list[tuple[tuple[str], tuple[list[int], float]]]:
    return [((task,), (list(one.buckets), one.sum_s)) for task, one in times.items()]
