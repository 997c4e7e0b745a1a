"""What a fleet of idle workers costs the database, and how soon it notices a death, by its size.

Some are real workers, with a slot each. The others are `idle.py`, which asks the database what an idle worker asks.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from outlive import db, linux, migrate
from outlive.errors import OutliveError
from outlive.temporary.program import Program, started, worker_environment, worker_words
from outlive.temporary.server import temporary_home, temporary_server
from outlive_lab.bench import databases
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.run import Run
from outlive_lab.bench.worker import SMALL

HOSTED = 225
"""How many idle workers one process has."""
CONNECTIONS = 3
SETTLE_S = 8.0
POLL_S = 0.01
STARTING = 8
"""How many real workers start at the same time."""
HALF_FROM = 100
"""From this size on, half of the fleet is killed at once."""
_STANDING = """
select count(*) from outlive.workers k join outlive.liveness l on l.worker = k.id where k.state = 'active'
"""
_LOAD = """
select d.xact_commit, d.numbackends - 1 from pg_stat_database d where d.datname = current_database()
"""
_DEAD = "select count(*) from outlive.workers where state = 'dead'"


@dataclass(slots=True)
class Fleet:
    url: str
    connection: db.Connection
    directory: Path
    stack: ExitStack
    real: list[Program] = field(default_factory=list)
    hosts: list[Program] = field(default_factory=list)

    def start_real(self) -> None:
        words = [*worker_words(SMALL, slots=1), "--quiet"]
        self.real.append(self._started(words))

    def start_idle(self, count: int) -> None:
        self.hosts.append(self._started([sys.executable, "-m", "outlive_lab.bench.idle", self.url, str(count)]))

    def _started(self, words: list[str]) -> Program:
        environment = worker_environment(self.url)
        return self.stack.enter_context(started(words, environment=environment, directory=self.directory))

    def await_size(self, size: int) -> None:
        self._until(lambda: self._count(_STANDING) == size, 60 + size, f"{size} workers are there")

    def death_s(self) -> float:
        """Kill a real worker by chance. Returns how long it takes until it is declared dead."""
        before = self._count(_DEAD)
        one = self.real.pop(random.randrange(len(self.real)))
        began_s = time.monotonic()
        one.process.kill()
        self._until(lambda: self._count(_DEAD) > before, 60, "it is declared dead")
        return time.monotonic() - began_s

    def deaths_s(self, half: int) -> float:
        """Kill so many at once, real and idle ones. Returns how long it takes until all are declared dead."""
        hosts = self.hosts[: half // HOSTED]
        real = self.real[: half - HOSTED * len(hosts)]
        before = self._count(_DEAD)
        began_s = time.monotonic()
        for program in (*hosts, *real):
            program.process.kill()
        self._until(lambda: self._count(_DEAD) >= before + half, 120, "all are declared dead")
        return time.monotonic() - began_s

    def load(self, seconds: float) -> tuple[float, float, int]:
        """Statements per second, the share of a core that Postgres takes, and connections."""
        server = int(_stat(self.connection.info.backend_pid)[1])  # The parent of a session.
        began_s, used_s, (commits, _) = time.monotonic(), _cpu_s(server), self._load()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        more, connections = self._load()
        return (more - commits) / took_s, (_cpu_s(server) - used_s) / took_s, connections

    def _load(self) -> tuple[int, int]:
        [(commits, connections)] = self.connection.execute(_LOAD).fetchall()
        return int(commits), int(connections)

    def _count(self, query: str) -> int:
        [(count,)] = self.connection.execute(query.encode()).fetchall()
        return int(count)

    def _until(self, there: Callable[[], bool], within_s: float, what: str) -> None:
        deadline = time.monotonic() + within_s
        while not there():
            if time.monotonic() > deadline:
                tails = " ".join(program.tail()[-300:] for program in (*self.hosts, *self.real[:1]))
                raise OutliveError(f"not within {within_s:.0f} s: {what}. {tails}")
            time.sleep(POLL_S)

    def end(self) -> None:
        for program in (*self.real, *self.hosts):
            program.process.kill()


def fleet(run: Run) -> Iterator[Figure]:
    settings = databases.SETTINGS | {"max_connections": str(CONNECTIONS * max(run.sizes.fleets) + 50)}
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home("bench-fleet"))
        url = stack.enter_context(temporary_server(home, settings))
        admin = stack.enter_context(db.connect(url))
        for size in run.sizes.fleets:
            with databases.database(admin, url, "fleet") as place, db.connect(place) as connection, ExitStack() as all_:
                migrate.migrate(connection)
                yield from _measured(run, Fleet(place, connection, home, all_), size)


def _measured(run: Run, fleet: Fleet, size: int) -> Iterator[Figure]:
    real = min(size, run.sizes.real_workers)
    try:
        for n in range(0, size - real, HOSTED):
            fleet.start_idle(min(HOSTED, size - real - n))
        for n in range(0, real, STARTING):
            fleet.await_size(size - real + n)
            for _ in range(min(STARTING, real - n)):
                fleet.start_real()
        fleet.await_size(size)
        time.sleep(SETTLE_S)
        loads = [fleet.load(5 * run.sizes.seconds) for _ in range(run.sizes.samples)]
        name = f"{size:,} idle worker{'s' * (size > 1)}"
        most = Bound("at most", 1.0) if size >= 1_000 else None
        yield Figure("fleet", f"{name}: statements of each", "/s", [one[0] / size for one in loads], bound=most)
        core = [100 * one[1] for one in loads]
        yield Figure(
            "fleet", f"{name}: CPU of Postgres", "% of a core", core, bound=Bound("at most", max(10, size / 10))
        )
        yield Figure("fleet", f"{name}: connections of each", "", [one[2] / size for one in loads])
        if size > 1:
            took_s = list(_deaths(run, fleet))
            yield Figure("fleet", f"{name}: until a death is noticed", "s", took_s, bound=Bound("at most", 2.0))
            last_s = sorted(took_s)[-1 - len(took_s) // 100]
            yield Figure("fleet", f"{name}: the same, p99", "s", [last_s], bound=Bound("at most", 2.0))
        if size >= HALF_FROM:
            half = (size - len(took_s)) // 2
            name, most = f"{name}: until {half} deaths at once are", Bound("at most", 5.0)
            yield Figure("fleet", name, "s", [fleet.deaths_s(half)], bound=most)
    finally:
        fleet.end()


def _deaths(run: Run, fleet: Fleet) -> Iterator[float]:
    """Kill half of the real workers, one by one. To start others in their place would take most of the time."""
    for _ in range(min(run.sizes.kills, len(fleet.real) // 2)):
        time.sleep(random.random())  # Or each would be killed just after a check.
        yield fleet.death_s()


def _cpu_s(server: int) -> float:
    """The processor time of a server, with that of its sessions, also of those that have ended."""
    ticks = sum(map(int, _stat(server)[11:15]))
    ticks += sum(sum(map(int, words[11:13])) for child in linux.children_of(server) if (words := _stat(child)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[bytes]:
    return linux.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
