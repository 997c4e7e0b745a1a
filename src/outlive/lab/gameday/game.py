"""One game: clients ask, workers work, faults happen, all at once; then everything must come to an end."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import psycopg

from outlive import db, kernel
from outlive.config import Config
from outlive.errors import OutliveError
from outlive.lab.gameday import jobs, tables
from outlive.lab.gameday.faults import Faults
from outlive.lab.gameday.feeding import Feeding
from outlive.lab.gameday.history import Exit, History, Kind
from outlive.lab.gameday.options import Asked
from outlive.lab.gameday.server import Server
from outlive.lab.gameday.workers import Workers

TICK_S = 0.01
LOOK_S = 0.2
START_S = 60.0
HURRY_S = 15.0
AHEAD = 5
"""How many jobs are unfinished at any time, for each slot."""

SHARP_S = 0.005
"""An answer that took longer says too little of the database's clock."""

FENCED = re.compile(rb"was not ours any more")


@dataclass(frozen=True, slots=True)
class Standing:
    """How far it is."""

    kills: int
    part: float
    finished: int
    up: int


class Audience(Protocol):
    def see(self, standing: Standing, /) -> None: ...
    def say(self, words: str, /) -> None: ...


class Game:
    def __init__(self, asked: Asked, server: Server, directory: Path, audience: Audience) -> None:
        self.asked, self.server, self.audience = asked, server, audience
        self.names = f"gameday-{uuid4().hex[:8]}-"
        self.workers = Workers(self.names, server.url, asked.workers, asked.slots, directory)
        self.feeding = Feeding(asked.seed, AHEAD * asked.workers * asked.slots, self.now_s)
        self.faults = Faults(random.Random(asked.seed), self.workers, server, self.now_s)
        self.history = History()
        self._connection: db.Connection | None = None
        self._ahead_s = 0.0
        """How far the database's clock is ahead of our monotonic one."""
        self._looked = 0.0
        self._away_since: float | None = None
        self._unfinished = 0
        self._stop_asked = 0

    def now_s(self) -> float:
        """What the database's clock says."""
        return time.monotonic() + self._ahead_s

    def play(self) -> History:
        """All of it; what was started is gone afterwards, whatever happens."""
        kernel.become_subreaper()  # What is orphaned on the way falls to us, and leaves no zombie.
        jobs.app.configure(Config(database_url=self.server.url))
        with self._hear_signals():
            try:
                self._begin()
                self._inject()
                self._drain()
            finally:
                self.faults.finish()
                self.feeding.stop()
                jobs.app.connections.close()
                self.workers.stop()
                self.history.left_behind = self.workers.left_behind()
                self._reap()
                if self._connection is not None:
                    self._connection.close()
        self.history.asks = self.feeding.asks
        self.history.faults = self.faults.done
        self.history.outages += self.faults.outages
        self.history.reports_fenced = sum(len(FENCED.findall(one.log.read_bytes())) for one in self.workers.gone)
        return self.history

    def keep_logs(self, path: Path) -> None:
        """What all workers said, for who wants to know why something is wrong."""
        with path.open("wb") as file:
            for member in self.workers.gone:
                file.write(f"== {member.name}\n".encode() + member.log.read_bytes())

    def _begin(self) -> None:
        self._look()
        self.history.began_s = self.now_s()
        self.audience.say(f"{self.asked.workers} workers with {self.asked.slots} slots each are started")
        deadline = time.monotonic() + START_S
        while any(member.up_since is None for member in self.workers.members) or not self.workers.members:
            self._tick()
            if self.history.exits or time.monotonic() > deadline:
                log = self.workers.gone[0].log if self.workers.gone else self.workers.members[0].log
                raise OutliveError(f"a worker does not start: {log.read_text(errors='replace')[-1000:]}")
            if self._stop_asked:
                return
        self.feeding.start()

    def _inject(self) -> None:
        began = time.monotonic()
        rng = random.Random(f"{self.asked.seed} times")
        due = began + 1.0
        while not self._stop_asked:
            took_s = time.monotonic() - began
            self._tick()
            self._tell(took_s)
            if self._over(took_s):
                return
            if time.monotonic() >= due and (made := self.faults.inject(self._connection, since_s=self.history.began_s)):
                due = time.monotonic() + rng.expovariate(self.asked.rate)
                if made[0].kind in (Kind.BACKEND, Kind.RESTART):
                    self._away(made[0].at_s)
        self.audience.say("asked to stop: no more faults, and what is under way comes to its end")

    def _over(self, took_s: float) -> bool:
        if self.asked.minutes is not None:
            return took_s >= 60 * self.asked.minutes
        return self._kills() >= self.asked.kills

    def _kills(self) -> int:
        return History(faults=self.faults.done).kills

    def _tell(self, took_s: float) -> None:
        kills = self._kills()
        minutes = self.asked.minutes
        part = took_s / (60 * minutes) if minutes is not None else kills / self.asked.kills
        up = sum(member.up_since is not None and not member.killed for member in self.workers.members)
        finished = max(0, len(self.feeding.asks) - self._unfinished)
        self.audience.see(Standing(kills, min(1.0, part), finished, up))

    def _drain(self) -> None:
        """V13: wait until nothing is left to do. A second request to stop ends that too."""
        self.workers.thaw(one for one in self.workers.members if one.frozen_until is not None)
        self.faults.finish()
        self.feeding.stop()
        asked = self._stop_asked
        last = time.monotonic()
        self.audience.say(
            f"{self._kills()} kills are done: all jobs must be finished within {self._patience_s():.0f} s"
        )
        self._unfinished = -1  # Until the next look.
        self._looked = 0.0
        while self._unfinished and time.monotonic() - last < self._patience_s():
            self._tick()
            if self._stop_asked > asked:
                break
        self.history.drain_s = time.monotonic() - last
        self.history.stopped = self._stop_asked > 0
        self.history.cut_short = self.history.stopped and self._unfinished != 0

    def _patience_s(self) -> float:
        return HURRY_S if self._stop_asked else self.asked.bounds.drain_s + 1.0

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self.faults.end_spells()
        self.faults.wake(self._connection)
        for member, code in self.workers.keep():
            self.history.exits.append(Exit(member.name, code, self.now_s()))
        self.history.short_leases |= {one.name for one in self.workers.members if self.workers.is_short(one.seat)}
        self.faults.watch_orphans()
        if time.monotonic() - self._looked >= LOOK_S:
            self._look()
            self._reap()

    def _look(self) -> None:
        """How many jobs are unfinished, which workers are up, and what time it is."""
        self._looked = time.monotonic()
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = self.server.connect()
        if self._connection is None:
            self._away(self.now_s())
            return
        names = {"ours": tables.OURS, "names": f"{self.names}%"}
        try:
            asked = time.monotonic()
            [(unfinished, now_s, up)] = self._connection.execute(tables.LOOK, names).fetchall()
        except psycopg.OperationalError:
            self._away(self.now_s())
            return
        heard = time.monotonic()
        if heard - asked < SHARP_S or not self._ahead_s:
            self._ahead_s = now_s - (asked + heard) / 2
        if self._away_since is not None:
            self.history.outages.append((self._away_since, now_s))
            self._away_since = None
        self._unfinished = unfinished
        self.feeding.look(unfinished)
        self.workers.known(up)

    def _away(self, since_s: float) -> None:
        if self._away_since is None:
            self._away_since = since_s
        self._looked = 0.0

    def _reap(self) -> None:
        """Orphans that fell to us; not our workers or who starts the server, for whom somebody waits."""
        if self.faults.restarting():
            return
        ours = {member.process.pid for member in self.workers.members}
        for pid in kernel.children_of(os.getpid()):
            if pid not in ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    @contextmanager
    def _hear_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are noted, and acted on where nothing is half done."""

        def note(*_: object) -> None:
            self._stop_asked += 1

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)
