"""How long other jobs have waited for a worker that claims nothing because of a suspect. This does no I/O.

It is told which job is the first of each lane. While that changes, other workers take the jobs of that lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from outlive.model import LaneState
from outlive.worker.lanes import LaneKey


class _First(NamedTuple):
    ready_at: datetime
    seen: float


class HeldUp:
    def __init__(self) -> None:
        self._first: dict[LaneKey, _First] = {}

    def forget(self) -> None:
        self._first = {}

    def found(self, lanes: Iterable[LaneState], now: float) -> None:
        """A search has found these lanes."""
        before, self._first = self._first, {}
        for lane in lanes:
            if lane.ready:
                key = LaneKey(lane.queue, lane.source, lane.task, lane.priority)
                known = before.get(key)
                same = known is not None and known.ready_at == lane.ready_at
                self._first[key] = known if known and same else _First(lane.ready_at, now)

    def longest_s(self, now: float) -> float:
        """How long the job has waited that waits longest; 0 if none does."""
        return max((now - first.seen for first in self._first.values()), default=0.0)
