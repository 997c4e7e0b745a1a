"""One game: clients enqueue, workers work and faults happen, all at once; then all jobs must be finished."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg

from outlive import linux
from outlive.config import Config
from outlive.errors import OutliveError
from outlive.temporary.program import handling
from outlive.worker.attempts.leases import NOT_OURS
from outlive.worker.processes.assignments import LEASE_LOST
from outlive_lab.gameday import deck, jobs, tables
from outlive_lab.gameday.faults import Faults
from outlive_lab.gameday.feeding import Feeding
from outlive_lab.gameday.history import Exit, History, Kind
from outlive_lab.gameday.options import Options
from outlive_lab.gameday.report import Progress
from outlive_lab.gameday.server import Server
from outlive_lab.gameday.workers import Workers

TICK_S = 0.01
COUNT_S = 0.2
START_S = 60.0
HURRY_S = 15.0
LEFT_S = 5.0
"""How long after the last job something may be left over, in time that the machine gave."""
AHEAD = 5
"""How many jobs are unfinished at any time, for each slot."""
SHARP_S = 0.005
"""An answer that took longer tells the database's clock too inexactly."""
FENCED = NOT_OURS.partition("%d")[2].encode()
"""How a worker's log tells that it reported an attempt too late."""
GIVEN_UP = re.compile(rf" jobs of child (\d+): {LEASE_LOST.error}".encode())
"""How it tells that it kills a shared process."""


class Game:
    def __init__(self, options: Options, server: Server, directory: Path, progress: Progress) -> None:
        self.options, self.server, self.progress = options, server, progress
        self.names = f"gameday-{uuid4().hex[:8]}-"
        self.history = History()
        short_lease = server.cluster is None  # An outage would end it.
        self.workers = Workers(self.names, server.url, options.workers, options.slots, directory, short_lease)
        target = AHEAD * options.workers * options.slots
        self.feeding = Feeding(options.seed, self.history, target=target, clock=self.now_s)
        self.faults = Faults(
            options.seed,
            self.history,
            workers=self.workers,
            server=server,
            clock=self.now_s,
            crowd=self.feeding.crowd,
            deck=deck.HA_DECK if options.ha else deck.DECK,
        )
        self._ahead_s = 0.0
        """How far the database's clock is ahead of the monotonic one."""
        self._counted_at = 0.0
        self._away_since: float | None = None
        self._unfinished = 0
        self._unburied: list[str] = []
        """Workers that are gone, and are not known to be dead."""
        self._signals = 0
        """How many signals have asked the game to stop."""

    def now_s(self) -> float:
        """The time of the database's clock."""
        return time.monotonic() + self._ahead_s

    def play(self) -> History:
        """Play the whole game. All processes that it starts are gone afterwards."""
        linux.become_subreaper()  # Orphans become children of this process, which reaps them.
        jobs.app.configure(Config(database_url=self.server.url))
        with handling((signal.SIGINT, signal.SIGTERM), self._note_signal):
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
                self.history.left_over += self._await_nothing(self._open)
                self._reap()
                self.server.close()
        self.history.short_leases = {one.name for one in self.workers.gone if one.short_lease}
        for log in (one.log.read_bytes() for one in self.workers.gone):
            self.history.reports_fenced += log.count(FENCED)
            self.history.given_up.update(int(pid) for pid in GIVEN_UP.findall(log))
        return self.history

    def keep_logs(self, path: Path) -> None:
        """Write the logs of all workers into one file."""
        with path.open("wb") as file:
            nodes = sorted(self.workers.directory.glob("*/patroni.log"))
            for log in [*(member.log for member in self.workers.gone), *nodes]:
                file.write(f"== {log}\n".encode() + log.read_bytes())

    def _note_signal(self, *_: object) -> None:
        """The game reads the count where it can stop."""
        self._signals += 1

    def _begin(self) -> None:
        self._count()
        self.history.began_s = self.now_s()
        self.progress.say(f"{self.options.workers} workers with {self.options.slots} slots each start")
        deadline = time.monotonic() + START_S
        while any(member.up_since is None for member in self.workers.members) or not self.workers.members:
            self._tick()
            if self.history.exits or time.monotonic() > deadline:
                log = [*self.workers.gone, *self.workers.members][0].log
                raise OutliveError(f"a worker does not start: {log.read_text(errors='replace')[-1000:]}")
            if self._signals:
                return
        self.feeding.start()

    def _inject(self) -> None:
        began = time.monotonic()
        rng = random.Random(f"{self.options.seed} times")
        due = began + 1.0
        while not self._signals:
            self._tick()
            if (part := self._part(time.monotonic() - began)) >= 1.0:
                return
            self.progress.see(part, self._standing)
            if time.monotonic() >= due and (fault := self.faults.inject()):
                due = time.monotonic() + rng.expovariate(self.options.rate)
                if fault.kind in (Kind.BACKEND, Kind.RESTART, Kind.OUTAGE):
                    self._away(fault.at_s)
        self.progress.say("asked to stop: there are no more faults, and running jobs may end")

    def _part(self, took_s: float) -> float:
        """Which part of the faults has happened."""
        minutes = self.options.minutes
        return self.history.kills / self.options.kills if minutes is None else took_s / (60 * minutes)

    def _standing(self) -> str:
        up = sum(member.up_since is not None and not member.killed for member in self.workers.members)
        finished = max(0, len(self.history.asks) - self._unfinished)
        return f"{self.history.kills:,} kills, {finished:,} jobs finished, {up} workers up"

    def _drain(self) -> None:
        """Wait until all jobs are finished, or until another signal."""
        self.faults.finish()
        self.history.quiet_s = self.now_s()
        self.feeding.stop()
        signals = self._signals
        last = time.monotonic()
        patience_s = HURRY_S if signals else self.options.bounds.drain_s + 1.0
        kills = self.history.kills
        self.progress.say(f"{kills} kills are done: all jobs must be finished within {patience_s:.0f} s")
        self._unfinished = -1  # Unknown until they are counted again.
        self._counted_at = 0.0
        while (
            (self._unfinished or self._unburied) and time.monotonic() - last < patience_s and self._signals == signals
        ):
            self._pause_schedules()
            self._tick()
        self.history.drain_s = time.monotonic() - last
        self.history.stopped = self._signals > 0
        self.history.cut_short = self.history.stopped and self._unfinished != 0
        if not self.history.cut_short:
            self.history.unburied = self._unburied
            self.history.left_over = self._await_nothing(lambda: tables.left_over(self.server.connection, self.names))

    def _await_nothing(self, look: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
        """Wait until nothing is left over, and return what is left after a while."""
        found, since_s, machine = [("answer", "of the database")], self.now_s(), self.history.machine
        while found and machine.given_s(since_s, self.now_s()) < LEFT_S:
            time.sleep(COUNT_S)
            machine.look(self.now_s())
            with contextlib.suppress(psycopg.OperationalError):
                found = look()
        return found

    def _open(self) -> list[tuple[str, str]]:
        """Sessions, and with them their locks, and files of workers that are gone."""
        sessions = [] if self.options.force else self.server.sessions()
        files = [*self.workers.files.rglob("*"), *tables.groups(self.server.connection, self.names)]
        return [*(("session", str(pid)) for pid in sessions), *(("file", str(path)) for path in files)]

    def _pause_schedules(self) -> None:
        """While they fire, there are always unfinished jobs."""
        with contextlib.suppress(psycopg.OperationalError):
            if not self.history.scheduled_s:
                self.history.scheduled_s = tables.pause_schedules(self.server.connection)
                self._unfinished = -1

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self.faults.go_on()
        for member, code in self.workers.keep():
            self.history.exits.append(Exit(member.name, code, self.now_s()))
        if time.monotonic() - self._counted_at >= COUNT_S:
            self._count()
            self._reap()
            self.history.machine.look(self.now_s())

    def _count(self) -> None:
        """Read how many jobs are unfinished, which workers are up, and the database's clock."""
        self._counted_at = time.monotonic()
        try:
            connection = self.server.connection
            asked = time.monotonic()
            unfinished, now_s, up, watched = tables.standing(connection, self.names)
            answered = time.monotonic()
            alone = tables.alone(connection, self.names)
        except psycopg.OperationalError:
            self._away(self.now_s())
            return
        self.faults.alone = alone
        if answered - asked < SHARP_S or not self._ahead_s:
            self._ahead_s = now_s - (asked + answered) / 2
        if self._away_since is not None:
            self.history.outages.append((self._away_since, now_s))
            self._away_since = None
        self._unfinished = unfinished
        self._unburied = sorted({*watched} - {member.name for member in self.workers.members})
        self.feeding.counted(unfinished)
        self.workers.known(up)

    def _away(self, since_s: float) -> None:
        if self._away_since is None:
            self._away_since = since_s
        self._counted_at = 0.0

    def _reap(self) -> None:
        """Reap orphans. Other code waits for the workers, and for the process that restarts the server."""
        if self.faults.restarting():
            return
        ours = {member.process.pid for member in self.workers.members}
        for pid in linux.children_of(os.getpid()):
            if pid not in ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
