"""A round: deaths for a minute, and then all jobs must end. Each round begins with empty tables."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from outlive import db, store
from outlive_lab.deaths import plan
from outlive_lab.deaths.clients import Client
from outlive_lab.deaths.dying import live_and_die
from outlive_lab.deaths.fleet import Fleet
from outlive_lab.deaths.history import History
from outlive_lab.deaths.plan import Fate
from outlive_lab.deaths.watchers import Watcher
from outlive_lab.deaths.worker import Worker
from outlive_lab.gameday.server import Server

WORKERS, WATCHERS, CLIENTS = 48, 4, 2
LIVES = 2 * WORKERS
"""Late and frozen workers live on beside those that replace them. Beyond this number the next ones wait."""
LOOK_S, SOON_S = 0.1, 1.0
ROUND_S = 120.0
DRAIN_S = 90.0
"""How long all jobs may take to end after the last death. An innocent suspect may have to wait for a minute."""
RECOVERED_S = 15.0
"""How long after a crash of the server no death can be noticed by its lock."""

EMPTY = """
create schema if not exists outlive_deaths;
create table if not exists outlive_deaths.effects (job uuid not null);
create table if not exists outlive_deaths.refused (n int unique deferrable initially deferred);
truncate outlive_deaths.effects, outlive_deaths.refused, outlive.jobs, outlive.waiting, outlive.running, outlive.held,
  outlive.attempts, outlive.crashes, outlive.dedupe_keys, outlive.workers, outlive.liveness, outlive.watchers,
  outlive.sleepers, outlive.keyed_jobs, outlive.key_turns, outlive.records, outlive.dependencies, outlive.end_checks,
  outlive.steps, outlive.signals, outlive.batches, outlive.callbacks, outlive.progress, outlive.expiring;
insert into outlive_deaths.refused values (1)
"""


class Round:
    def __init__(self, url: str, own: Path | None, seed: str, deaths: int) -> None:
        self.fleet, self._deaths = Fleet(url), deaths
        self._server = Server(url, own, 0.0)
        rng = random.Random(f"{seed} server")
        crashes, after = rng.random() < 0.5, rng.uniform(0.2, 0.8)
        self._crash_after = after * min(deaths, 1000) if crashes and own is not None else None
        """After how many deaths the server crashes; None: never, or it has."""
        self._lives, self._orders = plan.lives(seed), plan.orders(seed)
        self._watchers: list[Watcher] = []
        self._places = asyncio.Semaphore(LIVES)
        self._tasks: set[asyncio.Task[None]] = set()
        self.drained_s = 0.0

    async def play(self, tell: Callable[[int], None]) -> History:
        """Let workers die, then let all jobs end, and stop. All sessions are closed afterwards."""
        fleet, history = self.fleet, self.fleet.history
        try:
            await self._prepare()
            began = time.monotonic()
            while history.dead < self._deaths and time.monotonic() - began < ROUND_S:
                await self._look()
                tell(history.dead)
                if self._crash_after is not None and history.dead >= self._crash_after:
                    self._crash_after = None
                    self._start(self._crash())
            fleet.draining, began = True, time.monotonic()
            if await self._calm():
                await self._try_killer()
                await self._calm()
            self.drained_s = time.monotonic() - began
            fleet.over = True
            while self._tasks and time.monotonic() - began < 2 * DRAIN_S + history.stood_s:
                await self._look()
            for one in self._watchers:
                await one.stop()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await fleet.close()
        return history

    async def _calm(self) -> bool:
        """Wait until all jobs have ended and all dead workers are declared dead. Whether they have in time."""
        self.fleet.calm, began = False, time.monotonic()
        while not self.fleet.calm and time.monotonic() - began < DRAIN_S + self.fleet.history.stood_s:
            await self._look()
        return self.fleet.calm

    async def _try_killer(self) -> None:
        """While no other worker dies, several deaths are proof: the killer is quarantined, and none of the others."""
        self.fleet.history.calm_s = time.time()
        client = Client(self.fleet, iter([]))
        await client.place(plan.TRIAL)
        await client.close()

    async def _prepare(self) -> None:
        async with await self.fleet.connect(db.PLAIN) as connection:
            await connection.execute(EMPTY)
            await db.arun(connection, store.register_sources(plan.SOURCES))
            await db.arun(connection, store.register_tasks(plan.tasks()))
        for _ in range(WATCHERS):
            await self._watch()
        for _ in range(CLIENTS):
            self._start(Client(self.fleet, self._orders).run())
        for _ in range(WORKERS):
            self._start(self._one_after_the_other())

    def _start(self, service: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(service))

    async def _look(self) -> None:
        """What a virtual worker or client raises is no fault of the plan, and ends the round."""
        asked = time.monotonic()
        await asyncio.sleep(LOOK_S)
        await self.fleet.look()
        self.fleet.history.stood_s += max(0.0, time.monotonic() - asked - SOON_S)
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            task.result()

    async def _one_after_the_other(self) -> None:
        while not self.fleet.over:
            one = next(self._lives)
            if one.fate is Fate.WATCHER and not self.fleet.draining:
                await self._watchers.pop(0).kill()
                await self._watch()
            else:
                worker = Worker(self.fleet, one)
                self._start(self._live(worker))
                await worker.gone.wait()

    async def _live(self, worker: Worker) -> None:
        async with self._places:
            await live_and_die(worker)

    async def _watch(self) -> None:
        self._watchers.append(watcher := Watcher(self.fleet))
        await watcher.start()

    async def _crash(self) -> None:
        began_s = time.time()
        await asyncio.to_thread(self._server.restart)
        self.fleet.history.outages.append((began_s, time.time() + RECOVERED_S))
        self.fleet.history.seen["server crashed"] += 1
