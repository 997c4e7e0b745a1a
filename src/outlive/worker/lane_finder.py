"""Decides when to search for lanes that have jobs. The search takes at most 1 % of the worker's time.

Sources are searched in batches, in at most 3 % of the time: thousands of sources delay no other lane.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Container, Sequence

from outlive import store
from outlive.worker.lanes import Lanes
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

LOOK_S = 1.0
"""How long a busy worker goes without a look, at most."""
LANES_SHARE = 0.01
SOURCES_SHARE = 0.03
SOURCES_BATCH = 256
SOON_S = 0.2

_START = ("", "")


class LaneFinder:
    def __init__(self, session: Session, wake: Wakeup) -> None:
        self._session, self._wake = session, wake
        self.lanes = Lanes()
        self.suspect_waits = False
        self._found_at = -math.inf
        self._pause_s = 0.0
        self._costs_s: deque[float] = deque(maxlen=5)
        """How long the last looks took. The cheapest counts: the others waited for the processor."""
        self._after = _START
        self._sources_wanted = True
        self._sources_from = 0.0
        """When (monotonic) the next batch of sources may be searched."""
        self._sources_found_at = -math.inf
        self._source_costs_s: deque[float] = deque(maxlen=5)

    @property
    def due(self) -> bool:
        return self._wake.look or not self.lanes or time.monotonic() - self._found_at > self._pause_s

    def take_hints(self, tasks: Container[str], queues: Container[str] | None) -> bool:
        """Add the lanes in which a job was enqueued. True if there are some, and no search is needed now."""
        hints, self._wake.hints = self._wake.hints, {}
        mine = [key for key in hints if key.task in tasks and (queues is None or key.queue in queues)]
        self.lanes.add(mine)
        return bool(mine) and not self._wake.look and time.monotonic() - self._found_at < LOOK_S + SOON_S

    async def find(self, tasks: Sequence[str], queues: Sequence[str] | None) -> None:
        """Find the lanes without a source that have jobs."""
        started = time.monotonic()
        self._sources_wanted = self._sources_wanted or self._wake.look_at_sources or self.lanes.has_sources
        self._wake.look = self._wake.look_at_sources = False
        found = await self._session.run(store.unsourced_lanes(tasks, queues))
        self.lanes.found(found.lanes, found.paused)
        self.suspect_waits = found.suspect_waits
        self._found_at = time.monotonic()
        self._costs_s.append(self._found_at - started)
        self._pause_s = min(LOOK_S, min(self._costs_s) / LANES_SHARE)

    @property
    def sources_due(self) -> bool:
        return self._sources_in_s(time.monotonic()) <= 0

    async def find_sourced(self, tasks: Sequence[str], queues: Sequence[str] | None) -> None:
        """Search the next batch of sources that have jobs; the next call goes on from there."""
        started = time.monotonic()
        self._sources_wanted = False
        found = await self._session.run(store.sourced_lanes(tasks, queues, after=self._after, batch=SOURCES_BATCH))
        self._sources_found_at = ended = time.monotonic()
        self.lanes.found_sourced(found, self._after, ended)
        self._after = found.reached or _START
        self._source_costs_s.append(ended - started)
        self._sources_from = ended + min(self._source_costs_s) / SOURCES_SHARE

    def pause_s(self) -> float:
        """How long an idle worker may wait before it must ask a source or search for open ones."""
        now = time.monotonic()
        opens_in_s = self.lanes.opens_in_s(now)
        return min(self._sources_in_s(now), LOOK_S if opens_in_s is None else opens_in_s)

    def _sources_in_s(self, now: float) -> float:
        if self._sources_wanted or self._after != _START:
            return max(0.0, self._sources_from - now)
        due_at = min(self._sources_found_at + LOOK_S, self.lanes.opens_at or math.inf)
        return max(0.0, due_at - now, self._sources_from - now)
