"""The counters of a worker: plain numbers, which the hot path raises and a scrape copies."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from outlive.metrics.catalogue import BUCKETS_S, CRASHES, JOB_RUN, JOB_WAIT, JOBS_ENDED
from outlive.metrics.exposition import Figures
from outlive.model import Claimed, Ended
from outlive.states import Outcome

MAX_SERIES = 300
"""How many tasks, and how many pairs of a task and a queue, are counted by themselves. The others are `other`."""
OTHER = "other"
_CRASHED = frozenset({Outcome.CRASHED, Outcome.OUT_OF_MEMORY})


def bounded(counters: Mapping[str, object], key: str) -> str:
    """The key under which something is counted: `other` if there are too many."""
    return key if key in counters or len(counters) < MAX_SERIES else OTHER


class Times:
    """A histogram."""

    def __init__(self) -> None:
        self.buckets, self.sum_s = [0] * (len(BUCKETS_S) + 1), 0.0

    def add(self, time_s: float) -> None:
        self.buckets[bisect_left(BUCKETS_S, time_s)] += 1
        self.sum_s += time_s


class Tallies:
    def __init__(self, offset_s: Callable[[], float | None]) -> None:
        """`offset_s`: the clock of the database minus the monotonic one, if it is known."""
        self._offset_s = offset_s
        self._ended: dict[tuple[str, str], dict[Outcome, int]] = {}
        self._waits: defaultdict[str, Times] = defaultdict(Times)
        self._runs: defaultdict[str, Times] = defaultdict(Times)
        self._crashes: Counter[tuple[str, str]] = Counter()

    def claimed(self, jobs: Sequence[Claimed], since: float) -> None:
        """Count how long jobs have waited that were claimed at this monotonic time."""
        if (clock_s := self._offset_s()) is None:
            return
        first = jobs[0].ready_at  # Differences are much cheaper than timestamps.
        offset_s = since + clock_s - first.timestamp()
        for job in jobs:
            waited_s = max(0.0, (first - job.ready_at).total_seconds() + offset_s)
            self._waits[bounded(self._waits, job.task)].add(waited_s)

    def ended(self, job: Claimed, end: Ended) -> None:
        """Count an attempt that has ended. One that had not begun has no time."""
        series = job.task, job.queue
        if series not in self._ended and len(self._ended) >= MAX_SERIES:
            series = OTHER, OTHER
        if series not in self._ended:  # All of its counters are there from the start.
            self._ended[series] = dict.fromkeys(Outcome, 0)
        self._ended[series][end.outcome] += 1
        task = bounded(self._runs, job.task)
        if end.took_s is not None:
            self._runs[task].add(end.took_s)
        if end.outcome in _CRASHED:
            self._crashes[task, end.signal or "none"] += 1

    def figures(self) -> Figures:
        """A copy, which does not change while its text is made."""
        ended = [((*series, outcome), n) for series, counts in self._ended.items() for outcome, n in counts.items()]
        crashes = list(self._crashes.items())
        return {JOBS_ENDED: ended, JOB_WAIT: _spread(self._waits), JOB_RUN: _spread(self._runs), CRASHES: crashes}


def _spread(times: Mapping[str, Times]) -> list[tuple[tuple[str], tuple[list[int], float]]]:
    return [((task,), (list(one.buckets), one.sum_s)) for task, one in times.items()]
