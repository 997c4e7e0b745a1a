"""How much time the machine gave: with more work than cores, and on a host that takes cores away, a second of the clock
is less than a second for each process. Bounds of what must happen soon are measured in the time that was given.
"""

from __future__ import annotations

import os
from bisect import bisect
from pathlib import Path


class Machine:
    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        """Times of the clock, and how much was given until then."""
        self._ticks = (0, 0)

    def look(self, at_s: float) -> None:
        """Of the time since the last look, each process got the part that its share of the cores is now."""
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        before, self._ticks = self._ticks, (sum(ticks), ticks[7])
        all_ticks, stolen = (now - then for now, then in zip(self._ticks, before, strict=True))
        part = min(1.0, (os.cpu_count() or 1) / max(1, running)) * (1 - stolen / max(1, all_ticks))
        last_s, given_s = self._points[-1] if self._points else (at_s, 0.0)
        if at_s >= last_s:
            self._points.append((at_s, given_s + part * (at_s - last_s)))

    def given_s(self, since_s: float, until_s: float) -> float:
        """How much of this time it gave. Without looks at the machine: all of it."""
        return self._until(until_s) - self._until(since_s)

    def _until(self, at_s: float) -> float:
        after = bisect(self._points, (at_s, float("inf")))
        if after == 0:
            return at_s - self._points[0][0] if self._points else at_s
        (early_s, early), (late_s, late) = self._points[after - 1], self._points[min(after, len(self._points) - 1)]
        if late_s == early_s:
            return early + at_s - early_s
        return early + (late - early) * (at_s - early_s) / (late_s - early_s)
