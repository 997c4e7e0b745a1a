"""The faults of a game. A seed shuffles a deck of them; each card names a kind, and the game chooses the victim.

A worker is killed only while another one lives, which is spared for long enough to notice. If all workers are killed
at once, or the database is away, the time of that death is judged apart.
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
from outlive.lab.gameday.workers import SHORT_LEASE_S, Member, Workers
from outlive.lab.worker_process import is_alive

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
"""How long a deploy waits between SIGTERM and SIGKILL: far less than the grace period."""

TAKEN_S = 5.0
"""How long after its lease a frozen tree waits for other workers to begin its jobs again."""
ORPHANS_S = 10.0


@dataclass(slots=True)
class _Orphans:
    """The processes below a killed supervisor, until they are gone."""

    fault: int
    died: float
    pids: list[int]


@dataclass(frozen=True, slots=True)
class _Sleeper:
    """A worker that is frozen past its lease, until other workers have its jobs."""

    fault: int
    member: Member
    lease_over: float
    wakes_s: float
    """How much later than its children the supervisor wakes."""
    late: dict[int, UUID]
    """The attempts that were about to complete, and their jobs."""


@dataclass(slots=True)
class Faults:
    """Injects faults one after the other, and keeps the list of them."""

    rng: random.Random
    workers: Workers
    server: Server
    clock: Callable[[], float]
    done: list[Fault] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the database was read-only."""
    _deck: list[Kind] = field(default_factory=list)
    _orphans: list[_Orphans] = field(default_factory=list)
    _sleepers: list[_Sleeper] = field(default_factory=list)
    _spells: list[Spell] = field(default_factory=list)
    _restarter: threading.Thread | None = None

    def inject(self, connection: db.Connection | None, *, since_s: float) -> list[Fault]:
        """Play one of the next cards of the deck, or else kill a child. Empty if no fault is possible now.

        The other cards stay in the deck. So if workers start slowly, fewer of them are killed, but there are as many
        faults; and an outage does not use up all restarts at once.
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
                case Kind.ZYGOTE:
                    return self._kill_zygote()
                case Kind.REVIVAL:
                    return self._kill_zygote(bad_import=True)
                case Kind.SUPERVISOR | Kind.HEAD | Kind.TREE:
                    return self._kill_worker(kind)
                case Kind.EVERYBODY:
                    return self._kill_all_workers()
                case Kind.DEPLOY:
                    return self._deploy()
                case Kind.STOP:
                    return self._tell_to_stop()
                case Kind.RELOAD:
                    return self._reload()
                case Kind.FREEZE:
                    return self._freeze(kind, self._victims())
                case Kind.LOCK:
                    return self._lock()
                case Kind.RESTART:
                    return self._restart()
            if connection is None:
                return []
            match kind:
                case Kind.CHILD | Kind.SPARE:
                    return self._kill_child(kind, connection)
                case Kind.OVERDUE | Kind.PAUSE:
                    return self._freeze_past_lease(kind, connection)
                case Kind.READ_ONLY:
                    return self._forbid_writing(connection, since_s)
                case Kind.BACKEND:
                    at_s = self.clock()
                    killed = self.server.kill_session(connection, self.rng, since_s=since_s)
                    return [Fault(kind=kind, at_s=at_s)] if killed else []
        except psycopg.OperationalError:
            return []

    def _steady(self) -> list[Member]:
        now = time.monotonic()
        return [member for member in self.workers.members if member.steady(now)]

    def _victims(self) -> list[Member]:
        now = time.monotonic()
        return [member for member in self._steady() if member.spared_until < now]

    def _victim(self) -> Member | None:
        """A worker that may die, because another one lives."""
        victims = self._victims()
        return self.rng.choice(victims) if victims and len(self._steady()) > 1 else None

    def _kill_child(self, kind: Kind, connection: db.Connection) -> list[Fault]:
        """A child that runs a job, or a spare one. A tree that is frozen whole is spared: it must wake and write."""
        at_work = self._at_work(connection)
        if kind is Kind.CHILD:
            frozen = {member.name for member in self.workers.members if member.frozen}
            chosen = {(pid, name) for pid, name in at_work if name not in frozen}
        else:
            chosen = {(pid, member.name) for member in self._steady() for pid in member.children()} - at_work
        if not chosen:
            return []
        pid, name = self.rng.choice(sorted(chosen))
        at_s = self.clock()
        return [Fault(kind=kind, at_s=at_s, worker=name, pid=pid)] if self.workers.strike(pid) else []

    def _at_work(self, connection: db.Connection) -> set[tuple[int, str]]:
        """The children that run a job, and the names of their workers."""
        return set(connection.execute(tables.BUSY, {"names": f"{self.workers.names}%"}).fetchall())

    def _kill_zygote(self, *, bad_import: bool = False) -> list[Fault]:
        victims = [(member, zygote) for member in self._steady() if (zygote := member.zygote()) is not None]
        if not victims:
            return []
        member, zygote = self.rng.choice(victims)
        at_s = self.clock()
        if not self.workers.strike(zygote):
            return []
        if bad_import:
            self._import_badly(member.name)
        return [Fault(kind=Kind.REVIVAL if bad_import else Kind.ZYGOTE, at_s=at_s, worker=member.name)]

    def _reload(self) -> list[Fault]:
        """SIGHUP. The import that follows succeeds, is slow, or fails."""
        if not (steady := self._steady()):
            return []
        member = self.rng.choice(steady)
        if self.rng.random() < 2 / 3:
            self._import_badly(member.name)
        at_s = self.clock()
        kernel.kill(member.process.pid, signal.SIGHUP)
        return [Fault(kind=Kind.RELOAD, at_s=at_s, worker=member.name)]

    def _import_badly(self, name: str) -> None:
        self._last(spells.length_s(self.rng), spells.bad_import(self.workers.trouble(name), self.rng))

    def _last(self, length_s: float, end: Callable[[], bool]) -> None:
        self._spells.append(Spell(time.monotonic() + length_s, end))

    def _lock(self) -> list[Fault]:
        at_s, length_s = self.clock(), spells.length_s(self.rng)
        if not (begun := spells.lock(self.server, self.rng)):
            return []
        end, locked = begun
        self._last(length_s, end)
        return [Fault(kind=Kind.LOCK, at_s=at_s, jobs=locked, lasted_s=length_s)]

    def _forbid_writing(self, connection: db.Connection, since_s: float) -> list[Fault]:
        """Only on a temporary server: in a configured database, other sessions would suffer."""
        if self.server.own is None:
            return []
        at_s = self.clock()
        allow = spells.read_only(self.server, connection, since_s=since_s)

        def end() -> bool:
            if over := allow():
                self.outages.append((at_s, self.clock()))
            return over

        self._last(spells.length_s(self.rng), end)
        return [Fault(kind=Kind.READ_ONLY, at_s=at_s)]

    def end_spells(self, *, all_of_them: bool = False) -> None:
        """End the faults that have lasted long enough. One that can't be ended yet is tried again."""
        now = time.monotonic()
        self._spells = [spell for spell in self._spells if (now < spell.ends and not all_of_them) or not spell.end()]

    def _kill_worker(self, kind: Kind) -> list[Fault]:
        if (member := self._victim()) is None:
            return []
        witness = max((one for one in self._steady() if one is not member), key=lambda one: one.spared_until)
        witness.spared_until = time.monotonic() + WITNESS_S
        return [self._kill(member, kind, watched=True)]

    def _kill_all_workers(self) -> list[Fault]:
        """Also workers that are still starting. Not while one is a witness, is frozen, or is dead and not replaced."""
        members, now = self.workers.members, time.monotonic()
        left_alone = (one.killed or one.frozen_until or one.spared_until > now for one in members)
        if len(self._steady()) < 2 or any(left_alone):
            return []
        return [self._kill(member, Kind.EVERYBODY, watched=False) for member in members]

    def _deploy(self) -> list[Fault]:
        """SIGTERM, and SIGKILL of the whole tree before its jobs can end."""
        if (member := self._victim()) is None:
            return []
        member.killed = True
        made = Fault(kind=Kind.DEPLOY, at_s=self.clock(), worker=member.name)
        member.process.terminate()
        place = len(self.done)

        def end() -> bool:
            if member.process.poll() is None:
                self.done[place] = self._kill(member, Kind.DEPLOY, watched=True)
            return True

        self._last(PATIENCE_S, end)
        return [made]

    def _tell_to_stop(self) -> list[Fault]:
        """SIGTERM to every process of a worker, as an init system sends it. The children get it first."""
        if (member := self._victim()) is None:
            return []
        member.killed = True
        at_s = self.clock()
        for pid in [*reversed(kernel.descendants_of(member.process.pid)), member.process.pid]:
            kernel.kill(pid, signal.SIGTERM)
        return [Fault(kind=Kind.STOP, at_s=at_s, worker=member.name)]

    def _kill(self, member: Member, kind: Kind, *, watched: bool) -> Fault:
        """If more than the supervisor dies, zygote and parents are frozen first: they would see its end and act."""
        below = kernel.descendants_of(member.process.pid)
        zygote = None if kind is Kind.SUPERVISOR else member.zygote()
        if zygote is not None:
            for pid in (zygote, *member.parents()):
                kernel.kill(pid, signal.SIGSTOP)
        member.killed = True
        at_s = self.clock()
        member.process.kill()
        if zygote is not None:
            kernel.kill(zygote)
        if kind in (Kind.TREE, Kind.EVERYBODY, Kind.DEPLOY):
            for pid in below:
                self.workers.strike(pid)
        elif kind is Kind.SUPERVISOR:
            self._orphans.append(_Orphans(len(self.done), time.monotonic(), below))
        return Fault(kind=kind, at_s=at_s, worker=member.name, watched=watched)

    def _freeze(self, kind: Kind, victims: list[Member]) -> list[Fault]:
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

    def _freeze_past_lease(self, kind: Kind, connection: db.Connection) -> list[Fault]:
        """A worker that runs jobs. A whole tree must also be about to complete one, so that the fence is tried."""
        at_work = {name for _, name in self._at_work(connection)}
        victims = [one for one in self._victims() if self.workers.is_short(one.seat) and one.name in at_work]
        if kind is Kind.PAUSE:
            victims = [one for one in victims if tables.ready(connection, one.name)]
        if not (made := self._freeze(kind, victims)):
            return []
        [member] = victims  # One seat has a short lease.
        late: dict[int, UUID] = {}
        with contextlib.suppress(psycopg.OperationalError):  # The worker is frozen anyway.
            late = tables.ready(connection, member.name) if kind is Kind.PAUSE else {}
        lease_over = time.monotonic() + SHORT_LEASE_S + 0.2
        member.frozen_until = lease_over + TAKEN_S + FREEZE_S[1]
        self._sleepers.append(_Sleeper(len(self.done), member, lease_over, self.rng.uniform(*FREEZE_S), late))
        return made

    def wake(self, connection: db.Connection | None) -> None:
        """Wake the workers that were frozen for long enough.

        A worker that is frozen past its lease loses its jobs, as if `outlive reap` had run. The children wake when
        other workers have begun these jobs again, and the supervisor wakes later. So all that they write is late.
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
        """The attempts whose jobs other workers have begun again; None if the database is away."""
        if connection is not None:
            with contextlib.suppress(psycopg.OperationalError):
                db.run(connection, store.expire())
                return tables.begun_again(connection, sleeper.late)
        return None

    def _restart(self) -> list[Fault]:
        """Restart the temporary server in a thread, so that other faults can happen meanwhile."""
        if self.server.own is None or self.restarting():
            return []
        at_s = self.clock()
        self._restarter = threading.Thread(target=self.server.restart, daemon=True)
        self._restarter.start()
        return [Fault(kind=Kind.RESTART, at_s=at_s)]

    def restarting(self) -> bool:
        return self._restarter is not None and self._restarter.is_alive()

    def finish(self) -> None:
        """End all faults that last."""
        if self._restarter is not None:
            self._restarter.join()
        self.end_spells(all_of_them=True)
        self._sleepers = []

    def watch_orphans(self) -> None:
        """Note when the processes below a killed supervisor are gone, or that they take too long."""
        for one in list(self._orphans):
            one.pids = [pid for pid in one.pids if is_alive(pid) and self.workers.is_ours(pid)]
            took_s = time.monotonic() - one.died
            if not one.pids or took_s > ORPHANS_S:
                self._orphans.remove(one)
                self.done[one.fault] = replace(self.done[one.fault], orphans_gone_s=took_s)
