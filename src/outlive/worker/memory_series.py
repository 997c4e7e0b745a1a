"""How the memory of a job changes while it runs, in a bounded number of points."""

from __future__ import annotations

import msgspec

from outlive.model import MemoryCourse
from outlive.states import Outcome

MOST_POINTS = 60
LONG_S = 5.0
"""Of attempts that succeed sooner, the series is not kept."""


class MemorySeries:
    """The most that was measured in each step of time. When it is full, its steps become twice as long."""

    __slots__ = ("_ends_s", "_step_s", "_times_s", "_used_bytes")

    def __init__(self, step_s: float) -> None:
        self._step_s, self._ends_s = step_s, 0.0
        self._times_s: list[float] = []
        self._used_bytes: list[int] = []

    def wants(self, at_s: float) -> bool:
        """Whether a new step begins."""
        return at_s >= self._ends_s

    def note(self, at_s: float, used_bytes: int) -> None:
        if not self.wants(at_s):
            self._used_bytes[-1] = max(self._used_bytes[-1], used_bytes)
            return
        if len(self._times_s) == MOST_POINTS:
            self._times_s = self._times_s[::2]
            self._used_bytes = [*map(max, self._used_bytes[::2], self._used_bytes[1::2])]
            self._step_s *= 2
        self._times_s.append(at_s)
        self._used_bytes.append(used_bytes)
        self._ends_s = at_s + self._step_s

    def most_bytes(self) -> int:
        return max(self._used_bytes, default=0)

    def course(self, limit_bytes: int | None) -> MemoryCourse | None:
        """What was measured so far; None if there is nothing to see in it."""
        if len(self._times_s) < 2:
            return None
        times_s = [round(at_s, 2) for at_s in self._times_s]
        return MemoryCourse(limit_bytes, times_s, [max(0, used) for used in self._used_bytes])

    def kept(self, outcome: Outcome, took_s: float, limit_bytes: int | None) -> bytes | None:
        """What is stored with an attempt that ended so."""
        if outcome is Outcome.SUCCEEDED and took_s < LONG_S:
            return None
        course = self.course(limit_bytes)
        return None if course is None else msgspec.json.encode(course)
