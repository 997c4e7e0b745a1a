"""The faults of a game, and who is hit by them: drawn from a deck that a seed shuffles.

A worker is taken down only while another one is up and is left alone for long enough to notice; if all are taken down
at once, or the database is away, that death's time is judged apart.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

import psycopg

from outlive import db, kernel, store
from outlive.lab.gameday import spells, tables
from outlive.lab.gameday.history import Fault, Kind
from outlive.lab.gameday.server import Server
from outlive.lab.gameday.spells import Spell
from outlive.lab.gameday.workers import SHORT_LEASE_S, Member, Workers, is_zombie

DECK = {
    Kind.CHILD: 48,
    Kind.SPARE: 8,
    Kind.ZYGOTE: 6,
    Kind.SUPERVISOR: 5,
    Kind.TREE: 5,
    Kind.HEAD: 2,
    Kind.EVERYBODY: 1,
    Kind.REVIVAL: 2,
    Kind.DEPLOY: 4,
    Kind.STOP: 3,
    Kind.RELOAD: 2,
    Kind.FREEZE: 3,
    Kind.OVERDUE: 1,
    Kind.PAUSE: 3,
    Kind.LOCK: 4,
    Kind.READ_ONLY: 1,
    Kind.BACKEND: 1,
    Kind.RESTART: 1,
}
NEXT = 10
FREEZE_S = (0.3, 2.0)
WITNESS_S = 3.0
PATIENCE_S = 1.0
"""How long a deploy waits between SIGTERM and SIGKILL: far less than the grace."""

TAKEN_S = 5.0
"""How long after its lease a frozen tree waits until other workers have begun its jobs again."""
ORPHANS_S = 10.0


@dataclass(slots=True)
class _Orphans:
    """The processes below a supervisor that was killed, until they are gone."""

    fault: int
    died: float
    pids: list[int]


@dataclass(frozen=True, slots=True)
class _Sleeper:
    """A worker that is frozen past its lease, until others have what it was about to complete."""

    fault: int
    member: Member
    lease_over: float
    wakes_s: float
    """How much later than its children the supervisor wakes."""
    late: dict[int, UUID]
    """The attempts that were about to complete, and their jobs."""


@dataclass(slots=True)
class Faults:
    """Injects one after the other, and keeps the list of them."""

    rng: random.Random
    workers: Workers
    server: Server
    clock: Callable[[], float]
    done: list[Fault] = field(default_factory=list)
    _deck: list[Kind] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the database could not be written to."""
    _orphans: list[_Orphans] = field(default_factory=list)
    _sleepers: list[_Sleeper] = field(default_factory=list)
    _spells: list[Spell] = field(default_factory=list)
    _restarter: threading.Thread | None = None

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
                    return self._kill_child(connection) if connection else []
                case Kind.SPARE:
                    return self._kill_spare(connection) if connection else []
                case Kind.ZYGOTE:
                    return self._kill_zygote()
                case Kind.SUPERVISOR | Kind.HEAD | Kind.TREE:
                    return self._kill_worker(kind)
                case Kind.DEPLOY:
                    return self._deploy()
                case Kind.STOP:
                    return self._tell_to_stop()
                case Kind.REVIVAL:
                    return self._revive_badly()
                case Kind.RELOAD:
                    return self._reload()
                case Kind.LOCK:
                    return self._lock()
                case Kind.READ_ONLY:
                    return self._forbid_writing(connection, since_s) if connection else []
                case Kind.EVERYBODY:
                    return self._kill_everybody()
                case Kind.FREEZE:
                    return self._freeze()
                case Kind.OVERDUE | Kind.PAUSE:
                    return self._freeze_past_lease(kind, connection) if connection else []
                case Kind.BACKEND:
                    return self._kill_session(connection, since_s) if connection else []
                case Kind.RESTART:
                    return self._restart()
        except psycopg.OperationalError:
            return []

    def _kill_child(self, connection: db.Connection) -> list[Fault]:
        """One that is known to run a job. A tree that sleeps whole is left alone, to wake and write too late."""
        asleep = {member.name for member in self.workers.members if member.frozen}
        at_work = {(pid, name) for pid, name, _ in self._at_work(connection)}
        return self._strike(Kind.CHILD, {(pid, name) for pid, name in at_work if name not in asleep})

    def _kill_spare(self, connection: db.Connection) -> list[Fault]:
        """One that is not known to run a job."""
        children = {(pid, member.name) for member in self._steady() for pid in member.children()}
        return self._strike(Kind.SPARE, children - {(pid, name) for pid, name, _ in self._at_work(connection)})

    def _at_work(self, connection: db.Connection) -> set[tuple[int, str, str]]:
        """Children that run a job, their workers and the job's task."""
        rows = connection.execute(tables.BUSY, {"names": f"{self.workers.names}%"})
        return {(pid, name, task.removeprefix(tables.MODULE)) for pid, name, task in rows}

    def _strike(self, kind: Kind, chosen: set[tuple[int, str]]) -> list[Fault]:
        if not chosen:
            return []
        pid, name = self.rng.choice(sorted(chosen))
        at_s = self.clock()
        return [Fault(kind=kind, at_s=at_s, worker=name, pid=pid)] if self.workers.strike(pid) else []

    def _kill_zygote(self) -> list[Fault]:
        victims = [(member, zygote) for member in self._steady() if (zygote := member.zygote()) is not None]
        if not victims:
            return []
        member, zygote = self.rng.choice(victims)
        at_s = self.clock()
        return [Fault(kind=Kind.ZYGOTE, at_s=at_s, worker=member.name)] if self.workers.strike(zygote) else []

    def _revive_badly(self) -> list[Fault]:
        """A zygote is killed while its app can't be imported, or only slowly."""
        if not (made := self._kill_zygote()):
            return []
        self._import_badly(made[0].worker)
        return [replace(made[0], kind=Kind.REVIVAL)]

    def _reload(self) -> list[Fault]:
        """SIGHUP; the import that follows goes well, slowly, or not at all."""
        if not (victims := self._steady()):
            return []
        member = self.rng.choice(victims)
        if self.rng.random() < 2 / 3:
            self._import_badly(member.name)
        at_s = self.clock()
        kernel.kill(member.process.pid, signal.SIGHUP)
        return [Fault(kind=Kind.RELOAD, at_s=at_s, worker=member.name)]

    def _import_badly(self, name: str) -> None:
        end = spells.bad_import(self.workers.trouble(name), self.rng)
        self._spells.append(Spell(time.monotonic() + spells.length_s(self.rng), end))

    def _lock(self) -> list[Fault]:
        at_s, length_s = self.clock(), spells.length_s(self.rng)
        if not (begun := spells.lock(self.server, self.rng)):
            return []
        end, locked = begun
        self._spells.append(Spell(time.monotonic() + length_s, end))
        return [Fault(kind=Kind.LOCK, at_s=at_s, jobs=locked, lasted_s=length_s)]

    def _forbid_writing(self, connection: db.Connection, since_s: float) -> list[Fault]:
        """In a database of our own only: others' sessions would suffer."""
        if self.server.own is None:
            return []
        at_s = self.clock()
        begun = spells.read_only(self.server, connection, since_s=since_s)

        def end() -> bool:
            if over := begun():
                self.outages.append((at_s, self.clock()))
            return over

        self._spells.append(Spell(time.monotonic() + spells.length_s(self.rng), end))
        return [Fault(kind=Kind.READ_ONLY, at_s=at_s)]

    def end_spells(self, *, all_of_them: bool = False) -> None:
        """Put right what has been wrong for long enough; what can't be put right yet is tried again."""
        for spell in list(self._spells) if all_of_them else spells.due(self._spells):
            if spell.end():
                self._spells.remove(spell)

    def _kill_worker(self, kind: Kind) -> list[Fault]:
        steady, victims = self._steady(), self._not_spared()
        if not victims or len(steady) < 2:
            return []
        member = self.rng.choice(victims)
        witness = max((one for one in steady if one is not member), key=lambda one: one.spared_until)
        witness.spared_until = time.monotonic() + WITNESS_S
        return [self._kill(member, kind, watched=True)]

    def _deploy(self) -> list[Fault]:
        """SIGTERM, and SIGKILL of the whole tree before the jobs that it runs can end."""
        victims = self._not_spared()
        if not victims or len(self._steady()) < 2:
            return []
        member = self.rng.choice(victims)
        member.killed = True
        made = Fault(kind=Kind.DEPLOY, at_s=self.clock(), worker=member.name)
        member.process.terminate()
        place = len(self.done)

        def end() -> bool:
            if member.process.poll() is None:
                self.done[place] = self._kill(member, Kind.DEPLOY, watched=True)
            return True

        self._spells.append(Spell(time.monotonic() + PATIENCE_S, end))
        return [made]

    def _tell_to_stop(self) -> list[Fault]:
        """SIGTERM to every process of a worker, as an init system sends it: the children hear of it first."""
        victims = self._not_spared()
        if not victims or len(self._steady()) < 2:
            return []
        member = self.rng.choice(victims)
        member.killed = True
        at_s = self.clock()
        for pid in [*reversed(kernel.descendants_of(member.process.pid)), member.process.pid]:
            kernel.kill(pid, signal.SIGTERM)
        return [Fault(kind=Kind.STOP, at_s=at_s, worker=member.name)]

    def _kill_everybody(self) -> list[Fault]:
        """Also those that are only starting; not while one is a witness, frozen, or dead and not yet replaced."""
        members, now = self.workers.members, time.monotonic()
        left_alone = (one.killed or one.frozen_until or one.spared_until > now for one in members)
        if len(self._steady()) < 2 or any(left_alone):
            return []
        return [self._kill(member, Kind.EVERYBODY, watched=False) for member in self.workers.members]

    def _kill(self, member: Member, kind: Kind, *, watched: bool) -> Fault:
        """Where more than the supervisor dies, zygote and parents are held first: they would see its end and act."""
        below = kernel.descendants_of(member.process.pid)
        zygote = member.zygote()
        if kind is not Kind.SUPERVISOR and zygote is not None:
            for pid in (zygote, *member.parents()):
                kernel.kill(pid, signal.SIGSTOP)
        member.killed = True
        at_s = self.clock()
        member.process.kill()
        if kind is not Kind.SUPERVISOR and zygote is not None:
            kernel.kill(zygote)
        if kind in (Kind.TREE, Kind.EVERYBODY, Kind.DEPLOY):
            for pid in below:
                self.workers.strike(pid)
        elif kind is Kind.SUPERVISOR:
            self._orphans.append(_Orphans(len(self.done), time.monotonic(), below))
        return Fault(kind=kind, at_s=at_s, worker=member.name, watched=watched)

    def _freeze(self) -> list[Fault]:
        return self._stop(Kind.FREEZE, self._not_spared())

    def _freeze_past_lease(self, kind: Kind, connection: db.Connection) -> list[Fault]:
        """One that has jobs to lose, and for a whole tree one that is about to complete itself: the fence is for it."""
        at_work = {name for _, name, _ in self._at_work(connection)}
        victims = [one for one in self._not_spared() if self.workers.is_short(one.seat) and one.name in at_work]
        if kind is Kind.PAUSE:
            victims = [one for one in victims if tables.ready(connection, one.name)]
        if not (made := self._stop(kind, victims)):
            return []
        [member] = victims  # One seat has a short lease.
        late: dict[int, UUID] = {}
        with contextlib.suppress(psycopg.OperationalError):  # It is frozen anyway.
            late = tables.ready(connection, member.name) if kind is Kind.PAUSE else {}
        lease_over = time.monotonic() + SHORT_LEASE_S + 0.2
        member.frozen_until = lease_over + TAKEN_S + FREEZE_S[1]
        self._sleepers.append(_Sleeper(len(self.done), member, lease_over, self.rng.uniform(*FREEZE_S), late))
        return made

    def wake(self, connection: db.Connection | None) -> None:
        """Wake those that have slept for long enough.

        Who sleeps past its lease has its jobs taken away, as `outlive reap` would. The tree wakes when other workers
        have begun them again, and the supervisor some time later: what it and its jobs write then is late for certain.
        """
        now = time.monotonic()
        for one in [one for one in self._sleepers if now >= one.lease_over]:
            taken = self._taken_over(one, connection)
            if (taken is not None and taken >= one.late.keys()) or now >= one.lease_over + TAKEN_S:
                self._sleepers.remove(one)
                self.done[one.fault] = replace(self.done[one.fault], taken=taken or frozenset())
                one.member.frozen_until = now + one.wakes_s
                self.workers.wake_below(one.member)
        self.workers.thaw(self.workers.frozen_enough())

    def _taken_over(self, sleeper: _Sleeper, connection: db.Connection | None) -> frozenset[int] | None:
        """Which of its attempts others have begun again; none while the database does not say."""
        if connection is None:
            return None
        try:
            db.run(connection, store.expire())
            return tables.begun_again(connection, sleeper.late)
        except psycopg.OperationalError:
            return None

    def _stop(self, kind: Kind, victims: list[Member]) -> list[Fault]:
        if not victims:
            return []
        member = self.rng.choice(victims)
        at_s = self.clock()
        kernel.kill(member.process.pid, signal.SIGSTOP)
        if kind is Kind.PAUSE:
            member.frozen = kernel.descendants_of(member.process.pid)
            for pid in member.frozen:
                kernel.kill(pid, signal.SIGSTOP)
        member.frozen_until = time.monotonic() + self.rng.uniform(*FREEZE_S)
        return [Fault(kind=kind, at_s=at_s, worker=member.name)]

    def _not_spared(self) -> list[Member]:
        now = time.monotonic()
        return [member for member in self._steady() if member.spared_until < now]

    def _kill_session(self, connection: db.Connection, since_s: float) -> list[Fault]:
        at_s = self.clock()
        if not self.server.kill_session(connection, self.rng, since_s=since_s):
            return []
        return [Fault(kind=Kind.BACKEND, at_s=at_s)]

    def _restart(self) -> list[Fault]:
        """In the background: other faults may well happen meanwhile."""
        if self.server.own is None or self.restarting():
            return []
        at_s = self.clock()
        self._restarter = threading.Thread(target=self.server.restart, daemon=True)
        self._restarter.start()
        return [Fault(kind=Kind.RESTART, at_s=at_s)]

    def restarting(self) -> bool:
        return self._restarter is not None and self._restarter.is_alive()

    def finish(self) -> None:
        """Leave nothing under way."""
        if self._restarter is not None:
            self._restarter.join()
        self.end_spells(all_of_them=True)
        self._sleepers = []

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
