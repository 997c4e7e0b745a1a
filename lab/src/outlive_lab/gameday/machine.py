"""How much time the machine gave: with more work than cores, and on a host that takes cores away, a second of the clock
is less than a second for each process. Bounds of what must happen soon are measured in the time that was given.
"""

from __future__ import annotations

import os
from bisect import bisect
from pathlib import Path
from typing import NamedTuple


class _Look(NamedTuple):
    """A time of the clock, and sums until then."""

    at_s: float
    given_s: float = 0.0
    """What each process got."""
    stolen_s: float = 0.0
    """What the host gave to other machines."""


class Machine:
    def __init__(self) -> None:
        self._looks: list[_Look] = []
        self._ticks = (0, 0)

    def look(self, at_s: float) -> None:
        """Of the time since the last look, each process got the part that its share of the cores is now."""
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        before, self._ticks = self._ticks, (sum(ticks), ticks[7])
        all_ticks, stolen = (now - then for now, then in zip(self._ticks, before, strict=True))
        self.note(at_s, stolen=stolen / max(1, all_ticks), share=min(1.0, (os.cpu_count() or 1) / max(1, running)))

    def note(self, at_s: float, *, stolen: float, share: float = 1.0) -> None:
        """Since the last look the host took this part of the cores, and each process had this share of the rest."""
        last = self._looks[-1] if self._looks else _Look(at_s)
        took_s = at_s - last.at_s
        if took_s >= 0:
            given_s, stolen_s = last.given_s + share * (1 - stolen) * took_s, last.stolen_s + stolen * took_s
            self._looks.append(_Look(at_s, given_s, stolen_s))

    def given_s(self, since_s: float, until_s: float) -> float:
        """How much of this time each process got. Before the first look and after the last one: all of it."""
        return self._until(until_s).given_s - self._until(since_s).given_s

    def stolen_s(self, since_s: float, until_s: float) -> float:
        """How much of this time the host gave to other machines."""
        return self._until(until_s).stolen_s - self._until(since_s).stolen_s

    def _until(self, at_s: float) -> _Look:
        after = bisect(self._looks, at_s, key=lambda look: look.at_s)
        if after in (0, len(self._looks)):
            end = self._looks[-1 if after else 0] if self._looks else _Look(0.0)
            return _Look(at_s, end.given_s + at_s - end.at_s, end.stolen_s)
        early, late = self._looks[after - 1], self._looks[after]
        part = (at_s - early.at_s) / (late.at_s - early.at_s)
        return _Look(at_s, *(then + part * (now - then) for then, now in zip(early[1:], late[1:], strict=True)))
