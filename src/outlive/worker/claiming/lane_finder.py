"""When to search for lanes that have jobs, and when to sleep.

A worker marks itself asleep in the database before its last search for work, and enqueue notifies some of the workers
that are asleep. The tick (fleet/seat.py) finds what they miss. A busy worker is not marked, so that enqueue need not
notify it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from uuid import UUID

from outlive import store
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.lanes import Lanes
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

LOOK_S = 0.8
"""How long a busy worker goes without a search, at most, unless searches are slow. An urgent job begins within a
second: the search and the claims that are under way take their time too."""
SLOW_LOOK_S = 3.0
"""The same if they are slow, because a transaction holds a snapshot, and dead rows can't be removed."""
SLOW_SHARE = 0.03
SLEEP_S = 30.0
"""The same for a worker that sleeps. A notification wakes it, or its tick, which looks for ready jobs (fleet/seat.py).
"""
LANES_SHARE = 0.01
SOURCES_SHARE = 0.03
SOURCES_BATCH = 256
SOON_S = 0.2
PAUSES_S = (0.005, 0.02, 0.08, 0.32, SLEEP_S)

START = ("", "")


class _Searches:
    """When the last search was, and how long to pause, so that searches take no more than a share of the time."""

    def __init__(self, share: float) -> None:
        self._share, self.last_at, self.pause_s = share, -math.inf, 0.0
        self._costs_s: deque[float] = deque(maxlen=5)

    def note(self, started: float) -> None:
        self.last_at = time.monotonic()
        self._costs_s.append(self.last_at - started)
        self.pause_s = min(self._costs_s) / self._share  # The cheapest counts: others waited for the processor.

    @property
    def interval_s(self) -> float:
        return max(min(LOOK_S, self.pause_s), self.least_s)

    @property
    def least_s(self) -> float:
        """The same for a worker that knows no lane, or that was told that there may be others."""
        return min(SLOW_LOOK_S, self.pause_s * self._share / SLOW_SHARE)


class LaneFinder:
    def __init__(self, session: Session, wake: Wakeup, slots: Slots) -> None:
        self._session, self._wake, self._slots = session, wake, slots
        self.lanes = Lanes()
        self.suspect_waits = False
        self.claimed = True
        """A job was claimed since the last search."""
        self._searches, self._source_searches = _Searches(LANES_SHARE), _Searches(SOURCES_SHARE)
        self._after = START
        """The last queue and source that was searched."""
        self._sources_wanted = True

    async def search_if_due(self) -> None:
        """Search if it is time, and if there is room for the jobs."""
        if self._add_hinted() and self._slots.idle():
            return  # An idle worker claims first what it was notified of.
        if self._wake.look_at_dry and not self._due:
            self.lanes.add_dry()  # Most jobs are enqueued in lanes that had some before. A claim finds out at no cost.
        self._wake.look_at_dry = False
        if not self._due and self._sources_in_s() > 0:
            return  # First: to add up the room takes longer, with many slots.
        if not self._slots.capacity() and not self._slots.room.by_task():
            return
        if self._due:
            await self._search()
        if self._sources_in_s() <= 0:
            await self._search_sources()

    def _add_hinted(self) -> bool:
        """Add the lanes in which a job was enqueued. True if there are some, and no search is needed now."""
        hints, self._wake.hints = self._wake.hints, {}
        mine = [
            key
            for key in hints
            if key.task in self._slots.tasks and (self._slots.queues is None or key.queue in self._slots.queues)
        ]
        self.lanes.add(mine)
        return bool(mine) and not self._wake.look and time.monotonic() - self._searches.last_at < LOOK_S + SOON_S

    @property
    def _due(self) -> bool:
        return self._search_in_s() <= 0

    @property
    def is_current(self) -> bool:
        """The last search found what there is, as far as this worker knows."""
        return not self.claimed and not self._wake.look

    def _search_in_s(self) -> float:
        content = self.lanes and not self._wake.look
        interval_s = self._searches.interval_s if content else self._searches.least_s
        return max(0.0, self._searches.last_at + interval_s - time.monotonic())

    async def _search(self) -> None:
        """Find the lanes without a source that have jobs."""
        started = time.monotonic()
        self._sources_wanted = self._sources_wanted or self._wake.look_at_sources or self.lanes.has_sources
        self._wake.look = self._wake.look_at_sources = False
        found = await self._session.run(store.unsourced_lanes(list(self._slots.tasks), self._slots.queues))
        self.lanes.found(found.lanes, found.paused)
        self.suspect_waits = found.suspect_waits
        self.claimed = False
        self._searches.note(started)

    async def _search_sources(self) -> None:
        """Search the next batch of sources that have jobs; the next call goes on from there."""
        started = time.monotonic()
        self._sources_wanted = False
        tasks = list(self._slots.tasks)
        found = await self._session.run(
            store.sourced_lanes(tasks, self._slots.queues, after=self._after, batch=SOURCES_BATCH)
        )
        self.lanes.found_sourced(found, self._after, time.monotonic())
        self._after = found.reached or START
        self._source_searches.note(started)

    def pause_s(self) -> float:
        """How long an idle worker may wait before it must search for lanes, ask a source or search for open ones."""
        pause_s = SLEEP_S if self.is_current else self._search_in_s()
        if self._sources_wanted or self._after != START or self.lanes.has_sources:
            opens_in_s = self.lanes.opens_in_s(time.monotonic())
            return min(pause_s, self._sources_in_s(), LOOK_S if opens_in_s is None else opens_in_s)
        return pause_s

    def _sources_in_s(self) -> float:
        last_at, pause_s = self._source_searches.last_at, self._source_searches.pause_s
        due_at = last_at + pause_s
        if not self._sources_wanted and self._after == START:
            due_at = max(due_at, min(last_at + LOOK_S, self.lanes.opens_at or math.inf))
        return max(0.0, due_at - time.monotonic())


class Sleep:
    def __init__(
        self, worker: UUID, session: Session, *, slots: Slots, finder: LaneFinder, wake: Wakeup, bounds: Bounds
    ) -> None:
        self._worker, self._session, self._bounds = worker, session, bounds
        self._slots, self._finder, self._wake = slots, finder, wake
        self._marked_in: int | None = None
        """The connection by which this worker is marked as asleep. A server that has crashed has lost the mark."""
        self._slept_until = 0.0
        self._pauses = 0

    async def interrupt(self) -> None:
        """There is work: the next pauses are short, and a worker that stays busy is not marked any more."""
        self._pauses, self._finder.claimed = 0, True
        if self._marked_in is not None and time.monotonic() - self._slept_until > LOOK_S:
            await self._session.run(store.wake(self._worker))
            self._marked_in = None

    async def until_needed(self) -> None:
        """Wait until there may be something to do."""
        if not self._slots.capacity():
            await self.interrupt()
            await self._wake.wait(LOOK_S)
        elif self._marked_in != self._session.generation:
            await self._session.run(store.sleep(self._worker))
            self._marked_in = self._session.generation
            self._wake.look = self._wake.look_at_dry = self._wake.look_at_sources = True
            self._wake.follow.set()  # While it was not marked, notes were left without a notification.
            self._slept_until = time.monotonic()
        else:
            if self._slots.idle() and self._finder.is_current:
                self._bounds.idle()
            pause_s = min(PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)], self._finder.pause_s())
            self._pauses += 1
            self._wake.asleep = pause_s > LOOK_S
            await self._wake.wait(pause_s)
            self._wake.asleep = False
            self._slept_until = time.monotonic()
