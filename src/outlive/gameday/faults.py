"""The faults of a game, and who is hit by them: drawn from a deck that a seed shuffles.

A worker is taken down only while another one is up and is left alone for long enough to notice; if all are taken down
at once, or the database is away, that death's time is judged apart.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import psycopg

from outlive import db, kernel
from outlive.gameday import tables
from outlive.gameday.history import Fault, Kind
from outlive.gameday.server import Server
from outlive.gameday.workers import SHORT_LEASE_S, Member, Workers, is_zombie

DECK = {
    Kind.CHILD: 60,
    Kind.SUPERVISOR: 10,
    Kind.TREE: 8,
    Kind.ZYGOTE: 8,
    Kind.HEAD: 3,
    Kind.EVERYBODY: 1,
    Kind.FREEZE: 5,
    Kind.OVERDUE: 2,
    Kind.BACKEND: 2,
    Kind.RESTART: 1,
}
NEXT = 10
BUSY_PART = 0.8
FREEZE_S = (0.3, 2.0)
WITNESS_S = 3.0
ORPHANS_S = 10.0


@dataclass(slots=True)
class _Orphans:
    """The processes below a supervisor that was killed, until they are gone."""

    fault: int
    died: float
    pids: list[int]


@dataclass(slots=True)
class Faults:
    """Injects one after the other, and keeps the list of them."""

    rng: random.Random
    workers: Workers
    server: Server
    clock: Callable[[], float]
    done: list[Fault] = field(default_factory=list)
    _deck: list[Kind] = field(default_factory=list)
    _orphans: list[_Orphans] = field(default_factory=list)

    def inject(self, connection: db.Connection | None, *, since_s: float) -> list[Fault]:
        """One of the next cards of the deck, or a child's; none if none can be played now.

        The others stay where they are: a machine on which workers are slow to start sees fewer of them killed, and not
        fewer faults; and while the database is away not all restarts are drawn at once.
        """
        if len(self._deck) < sum(DECK.values()) // 2:
            cards = [kind for kind, count in DECK.items() for _ in range(count)]
            self.rng.shuffle(cards)
            self._deck += cards
        for kind in dict.fromkeys([*self._deck[:NEXT], Kind.CHILD]):
            if made := self._play(kind, connection, since_s):
                if kind in self._deck:
                    self._deck.remove(kind)
                self.done += made
                return made
        return []

    def _play(self, kind: Kind, connection: db.Connection | None, since_s: float) -> list[Fault]:
        try:
            match kind:
                case Kind.CHILD:
                    return self._kill_child(connection)
                case Kind.ZYGOTE:
                    return self._kill_zygote()
                case Kind.SUPERVISOR | Kind.HEAD | Kind.TREE:
                    return self._kill_worker(kind)
                case Kind.EVERYBODY:
                    return self._kill_everybody()
                case Kind.FREEZE | Kind.OVERDUE:
                    return self._freeze(kind)
                case Kind.BACKEND:
                    return self._kill_session(connection, since_s)
                case Kind.RESTART:
                    return self._restart()
        except psycopg.OperationalError:
            return []

    def _kill_child(self, connection: db.Connection | None) -> list[Fault]:
        """Mostly one that is known to run a job."""
        chosen: list[tuple[int, str]]
        if self.rng.random() < BUSY_PART and connection is not None:
            names = {"names": f"{self.workers.names}%"}
            chosen = [(pid, name) for pid, name in connection.execute(tables.BUSY, names)]
        else:
            chosen = [(pid, member.name) for member in self._steady() for pid in member.children()]
        if not chosen:
            return []
        pid, name = self.rng.choice(sorted(chosen))
        at_s = self.clock()
        return [Fault(kind=Kind.CHILD, at_s=at_s, worker=name, pid=pid)] if self.workers.strike(pid) else []

    def _kill_zygote(self) -> list[Fault]:
        victims = [(member, zygote) for member in self._steady() if (zygote := member.zygote()) is not None]
        if not victims:
            return []
        member, zygote = self.rng.choice(victims)
        at_s = self.clock()
        return [Fault(kind=Kind.ZYGOTE, at_s=at_s, worker=member.name)] if self.workers.strike(zygote) else []

    def _kill_worker(self, kind: Kind) -> list[Fault]:
        now = time.monotonic()
        steady = self._steady()
        victims = [member for member in steady if member.spared_until < now]
        if not victims or len(steady) < 2:
            return []
        member = self.rng.choice(victims)
        witness = max((one for one in steady if one is not member), key=lambda one: one.spared_until)
        witness.spared_until = now + WITNESS_S
        return [self._kill(member, kind, watched=True)]

    def _kill_everybody(self) -> list[Fault]:
        if len(self._steady()) < self.workers.count:
            return []
        return [self._kill(member, Kind.EVERYBODY, watched=False) for member in self.workers.members]

    def _kill(self, member: Member, kind: Kind, *, watched: bool) -> Fault:
        """The zygote of a worker that is to die whole is held first: it would see the supervisor's end and act."""
        below = kernel.descendants_of(member.process.pid)
        zygote = member.zygote()
        if kind is not Kind.SUPERVISOR and zygote is not None:
            kernel.kill(zygote, signal.SIGSTOP)
        member.killed = True
        at_s = self.clock()
        member.process.kill()
        if kind is not Kind.SUPERVISOR and zygote is not None:
            kernel.kill(zygote)
        if kind in (Kind.TREE, Kind.EVERYBODY):
            for pid in below:
                self.workers.strike(pid)
        elif kind is Kind.SUPERVISOR:
            self._orphans.append(_Orphans(len(self.done), time.monotonic(), below))
        return Fault(kind=kind, at_s=at_s, worker=member.name, watched=watched)

    def _freeze(self, kind: Kind) -> list[Fault]:
        now = time.monotonic()
        victims = [
            member
            for member in self._steady()
            if member.spared_until < now and (kind is Kind.FREEZE or self.workers.is_short(member.seat))
        ]
        if not victims:
            return []
        member = self.rng.choice(victims)
        past_lease_s = SHORT_LEASE_S + 0.5 if kind is Kind.OVERDUE else 0.0
        at_s = self.clock()
        kernel.kill(member.process.pid, signal.SIGSTOP)
        member.frozen_until = now + past_lease_s + self.rng.uniform(*FREEZE_S)
        member.overdue = kind is Kind.OVERDUE
        return [Fault(kind=kind, at_s=at_s, worker=member.name)]

    def _kill_session(self, connection: db.Connection | None, since_s: float) -> list[Fault]:
        at_s = self.clock()
        if connection is None or not self.server.kill_session(connection, self.rng, since_s=since_s):
            return []
        return [Fault(kind=Kind.BACKEND, at_s=at_s)]

    def _restart(self) -> list[Fault]:
        if self.server.own is None:
            return []
        at_s = self.clock()
        self.server.restart()
        return [Fault(kind=Kind.RESTART, at_s=at_s)]

    def _steady(self) -> list[Member]:
        now = time.monotonic()
        return [member for member in self.workers.members if member.steady(now)]

    def watch_orphans(self) -> None:
        """See whether what was below a dead supervisor is gone; what takes too long is not waited for."""
        for one in list(self._orphans):
            one.pids = [pid for pid in one.pids if not is_zombie(pid) and self.workers.is_ours(pid)]
            took_s = time.monotonic() - one.died
            if not one.pids or took_s > ORPHANS_S:
                self._orphans.remove(one)
                self.done[one.fault] = replace(self.done[one.fault], orphans_gone_s=took_s)
