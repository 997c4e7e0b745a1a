"""The tick of every worker, and the seat by which some of them are watchers.

Three workers watch over all others: they notice deaths, sweep, fire schedules and do what transactions have left. The
others ask once a second (`tick`) whether a seat is vacant, whether they were declared dead, and whether there is
something to do. All else comes to them by notifications, so an idle worker costs the database one cheap statement a
second, however many there are.

A watcher renews its term with each tick. A seat is vacant if the term has ended, as that of a frozen watcher does, or
if the watcher's lock (liveness.py) is free, as it is at once when the watcher has died. So while workers are left, one
of them watches a second after all watchers were killed, and five seconds after all were frozen, or died behind a
pooler. To watch for too long does no harm: several workers may do at once all that watchers do.

All this runs on the connection of the claim loop, which is idle when the worker is: a worker whose listening connection
is silently cut finds jobs all the same. Watchers are spread over hosts: one that finds another on its own host leaves
its seat to a host that has none. A seat that stays vacant is taken all the same.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from outlive import store
from outlive.worker import log
from outlive.worker.fleet.liveness import Then
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

TICK_S = (1.0, 1.2)
"""How long a worker waits for its next tick: by chance, so that workers that have started together don't tick so."""
TERM_S = 3.0
"""How long a watcher has its seat. It counts from before the statement that renews it, and so ends here first."""
HOLD_BACK_S = 3.0
"""How long a seat must be vacant before a worker takes it whose host has a watcher, while others have none."""
SPREAD_S = 10.0
"""How often a watcher looks whether it should leave its seat to another host."""
STAY_S = 60.0
"""How long a watcher stays that had to take again what it has left."""

RunOnce = Callable[[], Awaitable[None]]


class Seat:
    def __init__(
        self, worker: UUID, session: Session, reaper: Reaper, *, slots: Slots, wake: Wakeup, on_declared_dead: Then
    ) -> None:
        self._worker, self._session, self._reaper, self._slots, self._wake = worker, session, reaper, slots, wake
        self._on_declared_dead = on_declared_dead
        self._until = -math.inf
        """When the term ends, by the monotonic clock. It is not trusted after that, but may be renewed."""
        self._taken = asyncio.Event()
        self._vacant_since: float | None = None
        self._spread_at = 0.0
        self._generation = 0

    @property
    def held(self) -> bool:
        return time.monotonic() < self._until

    def only_watching(self, run_once: RunOnce) -> RunOnce:
        """The service, as long as this worker is a watcher."""

        async def run_if_held() -> None:
            await self._taken.wait()
            if self.held:
                await run_once()
            else:
                self._taken.clear()

        return run_if_held

    async def run_once(self) -> None:
        await self.tick()
        await asyncio.sleep(random.uniform(*TICK_S))

    async def tick(self) -> None:
        tasks = list(self._slots.tasks) if self._wake.asleep else []
        announcements = self._reaper.announcements
        alerts = announcements.has_command or self.held
        asked_at = time.monotonic()
        found = await self._session.run(
            store.tick(self._worker, tasks, self._slots.queues, watching=self.held, alerts=alerts)
        )
        self._note_connection()
        await self._reaper.clocks.note(found.now, asked_at)
        if found.dead:
            self._on_declared_dead()
            return
        if found.look:
            self._wake.notify()
        if found.untold:
            announcements.untold.set()
        if found.leftover:
            self._wake.follow.set()
        if found.read_only:
            return  # A term that ends meanwhile can be renewed later.
        if self._until > -math.inf:
            await self._keep()
        elif found.vacant:
            await self._take()
        else:
            self._vacant_since = None

    def _note_connection(self) -> None:
        """What has ended this worker's connection may have ended others': the reaper is cautious then."""
        if self._session.generation != self._generation:
            if self._generation:
                self._reaper.absences.reconnected_at = time.monotonic()
            self._generation = self._session.generation

    async def _keep(self) -> None:
        asked_at = time.monotonic()
        kept = await self._session.run(store.keep_seat(self._worker, term_s=TERM_S))
        if kept and asked_at >= self._spread_at:
            self._spread_at = asked_at + SPREAD_S
            if await self._session.run(store.leave_crowd(self._worker)):
                kept, self._spread_at = False, asked_at + STAY_S
        self._sit(asked_at if kept else None)

    async def _take(self) -> None:
        asked_at = time.monotonic()
        self._vacant_since = self._vacant_since or asked_at
        anyway = asked_at - self._vacant_since >= HOLD_BACK_S
        # If the answer to the last try was lost, this worker may have a seat.
        had = await self._session.run(store.keep_seat(self._worker, term_s=TERM_S))
        if had or await self._session.run(store.take_seat(self._worker, term_s=TERM_S, anyway=anyway)):
            self._sit(asked_at)

    def _sit(self, since: float | None) -> None:
        """This worker has a seat for a term since then; None: no more."""
        if (since is None) != (self._until == -math.inf):
            log.debug("Worker %s is %s watcher", self._worker, "no longer a" if since is None else "a")
        self._vacant_since = None
        self._until = -math.inf if since is None else since + TERM_S
        if since is not None:
            self._taken.set()
