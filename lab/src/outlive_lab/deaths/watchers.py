"""Watchers: workers without jobs, with the services of outlive by which deaths are noticed. They die too."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

from outlive import db, store
from outlive.worker.fleet.leftovers import Leftovers
from outlive.worker.fleet.liveness import Liveness
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.fleet.seat import Seat
from outlive.worker.loops import RETRY_SOON_S, forever
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup
from outlive_lab.deaths.fleet import Fleet
from outlive_lab.deaths.history import Life
from outlive_lab.deaths.plan import CONFIG, Fate


class Watcher:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.id = fleet, uuid4()
        self.life = fleet.history.lives[self.id] = Life(self.id, Fate.STOPS)
        self._liveness = Liveness(self.id, fleet.url, lambda _: None)
        self._hot, self._session = Session(fleet.url, db.CLAIMS), Session(fleet.url)
        wake = Wakeup()
        self._reaper = reaper = Reaper(self._session, CONFIG, Alerts(), self.id)
        leftovers = Leftovers(self._session, wake)
        slots = cast("Slots", SimpleNamespace(tasks=(), queues=None))
        seat = Seat(self.id, self._hot, reaper, slots=slots, wake=wake, on_declared_dead=self._declared_dead)
        self._loops = {
            "live": self._liveness.run_once,
            "beat": self._beat_once,
            "seat": seat.run_once,
            "reap": seat.only_watching(reaper.check_once),
            "sweep": seat.only_watching(reaper.sweep_once),
            "follow": seat.only_watching(leftovers.run_once),
        }
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        registering = store.register_worker(
            self.id, name="watcher", hostname="virtual", pid=1, version="0", queues=None, slots=1, config=CONFIG
        )
        await self._fleet.surely(registering)
        self._tasks = [asyncio.create_task(forever(name, loop, RETRY_SOON_S)) for name, loop in self._loops.items()]

    async def _beat_once(self) -> None:
        sent_s = time.time()
        if await self._session.run(store.heartbeat(self.id, "active")):
            self.life.signed_s = sent_s
        await asyncio.sleep(CONFIG.heartbeat_s)

    def _declared_dead(self) -> None:
        self.life.declared = True

    async def kill(self) -> None:
        self._fleet.history.died(self.life, Fate.WATCHER)
        await self._hang_up()

    async def stop(self) -> None:
        await self._fleet.surely(store.stop_worker(self.id))
        await self._hang_up()

    async def _hang_up(self) -> None:
        for one in self._tasks:
            one.cancel()
        for session in (self._liveness.session, self._hot, self._session):
            session.hang_up()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._liveness.close()
        await self._hot.close()
        await self._session.close()
