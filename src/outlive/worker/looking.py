"""When a worker looks for lanes: as often as it may at a hundredth of its time, so that what is urgent is known soon.

Sources are looked through in parts, at three hundredths of the time at most: thousands of them delay no other lane.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from outlive import db, store
from outlive.worker.lanes import Lanes

LOOK_S = 1.0
"""How long a busy worker goes without a look at most."""
LOOK_SHARE = 0.01
SOURCES_SHARE = 0.03
SOURCES_AT_ONCE = 256

_START = ("", "")


class Looking:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.notified = True
        """Something was put into the queue that no look has seen."""
        self._looked_at = -math.inf
        self._pause_s = 0.0
        self._costs_s: deque[float] = deque(maxlen=5)
        """What the last looks took. The cheapest counts: on a busy machine the others have waited for the processor."""
        self._after = _START
        self._sources_wanted = True
        self._sources_from = 0.0
        """When (monotonic) the next part of the sources may be looked through."""
        self._sources_looked_at = -math.inf

    def due(self) -> bool:
        return self.notified or not self.lanes or time.monotonic() - self._looked_at > self._pause_s

    async def look(self, connection: db.AsyncConnection, tasks: Sequence[str], queues: Sequence[str] | None) -> None:
        """Find the lanes that have something."""
        started = time.monotonic()
        self._sources_wanted = self._sources_wanted or self.notified or self.lanes.has_sources
        self.notified = False
        found = await db.arun(connection, store.unsourced_lanes(tasks, queues))
        self.lanes.found(found)
        self._looked_at = time.monotonic()
        self._costs_s.append(self._looked_at - started)
        self._pause_s = min(LOOK_S, min(self._costs_s) / LOOK_SHARE)

    def sources_due(self) -> bool:
        return self._sources_in_s(time.monotonic()) <= 0

    async def look_at_sources(
        self, connection: db.AsyncConnection, tasks: Sequence[str], queues: Sequence[str] | None
    ) -> None:
        """Look through the next sources that have something, and go on there the next time."""
        started = time.monotonic()
        self._sources_wanted = False
        look = store.sourced_lanes(tasks, queues, after=self._after, batch=SOURCES_AT_ONCE)
        found = await db.arun(connection, look)
        self._sources_looked_at = ended = time.monotonic()
        self.lanes.found_sourced(found, self._after, ended)
        self._after = found.reached or _START
        self._sources_from = ended + (ended - started) / SOURCES_SHARE

    def pause_s(self) -> float:
        """How long a worker that has nothing to do may wait before it must ask a source, or look for open ones."""
        now = time.monotonic()
        opens_in_s = self.lanes.opens_in_s(now)
        return min(self._sources_in_s(now), LOOK_S if opens_in_s is None else opens_in_s)

    def _sources_in_s(self, now: float) -> float:
        if self._sources_wanted or self._after != _START:
            return max(0.0, self._sources_from - now)
        due_at = min(self._sources_looked_at + LOOK_S, self.lanes.opens_at or math.inf)
        return max(0.0, due_at - now, self._sources_from - now)
