"""The faults of a game. A seed shuffles a deck of them; each card names a kind, and the game chooses the victim.

A worker is killed only while another one lives, which is spared for long enough to notice. If all workers are killed
at once, or the database is away, the time of that death is judged apart. `deck.py` lists all kinds.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from outlive import db, linux, store
from outlive.worker.limits.cgroups import Group
from outlive_lab.gameday import jobs, squeeze, tables
from outlive_lab.gameday.cluster import Cluster
from outlive_lab.gameday.history import TAKEN_OVER, Fault, History, Kind
from outlive_lab.gameday.server import Server
from outlive_lab.gameday.workers import SHORT_LEASE_S, Member, Process, Workers

NEXT = 10
FREEZE_S = (0.3, 2.0)
SPELL_S = (2.0, 4.0)  # How long imports are bad, rows locked and the database read-only.
PAUSED_S = (4.0, 8.0)  # How long a queue is paused: for longer than workers need to notice.
WITNESS_S = 3.0
PATIENCE_S = 1.0  # How long a deploy waits between SIGTERM and SIGKILL: far less than the grace period.
TAKEN_S = 5.0  # How long after its lease a frozen tree waits for other workers to begin its jobs again.
ORPHANS_S = 10.0
AWAY_S = (SHORT_LEASE_S + 1.0, SHORT_LEASE_S + 3.0)
MACHINE_S = (10.5, 12.0)  # How long a machine is frozen: longer than the times of innocent jobs.
CALM_S = 30.0  # The least time between faults that stop the whole game.
SQUEEZED_S = 10.0
BETWEEN_S = 5.0  # The least time between failovers, from when the cluster has recovered.
CROWD_AFTER = 15  # How many faults happen before a job with many dependents fails.

Deck = Mapping[Kind, tuple[int, Callable[["Faults"], Sequence[Any]], Callable[["Faults", Fault, Any], bool | None]]]
"""How many of some hundred faults are of each kind, the possible victims, and what happens to one of them. An action
that returns False did nothing."""


class Faults:
    """Injects faults one after the other, and keeps those going that last."""

    def __init__(
        self,
        seed: int,
        history: History,
        *,
        workers: Workers,
        server: Server,
        clock: Callable[[], float],
        crowd: Callable[[Fault], None],
        deck: Deck,
    ) -> None:
        self._rng = random.Random(seed)
        self._history, self._workers, self._server = history, workers, server
        self._clock, self._crowd, self._all = clock, crowd, deck
        self.alone: dict[str, frozenset[UUID]] = {}  # The innocent jobs that run alone, by the name of their worker.
        self._lost_alone: set[UUID] = set()  # Those that were lost so. A second time might look like a proof.
        self._calm_at = 0.0
        self._deck: list[Kind] = []
        self._lasting: list[Iterator[None]] = []  # Each goes on for a while, step by step, until its fault is over.
        self._over = False
        self._restarter: threading.Thread | None = None

    def inject(self) -> Fault | None:
        """Play one of the next cards of the deck, or else kill a child. None if no fault is possible now.

        The other cards stay in the deck. So if workers start slowly, fewer of them are killed, but there are as many
        faults; and an outage does not use up all restarts at once.
        """
        if len(self._deck) < sum(count for count, _, _ in self._all.values()) // 2:
            cards = [kind for kind, (count, _, _) in self._all.items() for _ in range(count)]
            self._rng.shuffle(cards)
            self._deck += [kind for kind in cards if self._is_possible(kind)]
        happened = [fault.kind for fault in self._history.faults]
        crowd = [Kind.CROWD] if len(happened) >= CROWD_AFTER and Kind.CROWD in self._all.keys() - happened else []
        for kind in dict.fromkeys([*crowd, *self._deck[:NEXT], Kind.CHILD]):
            with contextlib.suppress(psycopg.OperationalError):  # The database is away.
                if fault := self._play(kind):
                    if kind in self._deck:
                        self._deck.remove(kind)
                    self._history.faults.append(fault)
                    return fault
        return None

    def _is_possible(self, kind: Kind) -> bool:
        """Cards that can never be played would fill the deck."""
        if kind is Kind.OOM:
            return squeeze.possible()
        return self._server.own is not None or kind not in (Kind.READ_ONLY, Kind.RESTART, Kind.OUTAGE)

    def _play(self, kind: Kind) -> Fault | None:
        _, victims, act = self._all[kind]
        if not (found := victims(self)):
            return None
        victim = self._rng.choice(found)
        fault = Fault(kind=kind, at_s=self._clock(), worker=victim.name if isinstance(victim, Member) else "")
        if act(self, fault, victim) is False:
            return None
        if kind in TAKEN_OVER:
            names = list(self.alone) if kind is Kind.EVERYBODY else [fault.worker]
            self._lost_alone.update(*(self.alone.get(name, ()) for name in names))
        return fault

    def go_on(self) -> None:
        """Let the faults that last take their next step."""
        self._lasting = [one for one in self._lasting if next(one, "over") != "over"]

    def finish(self) -> None:
        """End all faults that last."""
        if self._restarter is not None:
            self._restarter.join()
        self._over = True
        self.go_on()

    def restarting(self) -> bool:
        return self._restarter is not None and self._restarter.is_alive()

    def _wait(self, seconds: float) -> Iterator[None]:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._over:
            yield

    def _later(self, seconds: float, end: Callable[[], object]) -> None:
        """End a fault after some time. If the database is away then, try again."""

        def ending() -> Iterator[None]:
            yield from self._wait(seconds)
            while True:
                with contextlib.suppress(psycopg.OperationalError):
                    end()
                    return
                yield

        self._lasting.append(ending())

    def _at_work(self) -> list[Process]:
        """Children that run a job, but no innocent one."""
        spared = [jobs.pace.name, *tables.SHARING]
        return self._awake(tables.at_work(self._server.connection, self._workers.names, spared=spared))

    def _shared(self) -> list[Process]:
        return self._awake(tables.shared(self._server.connection, self._workers.names))

    def _awake(self, found: set[Process]) -> list[Process]:
        """A tree frozen whole is spared: it must wake and write."""
        frozen = {member.name for member in self._workers.members if member.frozen_below}
        return sorted(one for one in found if one[1] not in frozen)

    def _spare(self) -> list[Process]:
        below = {(pid, member.name) for member in self._steady() for pid in member.children()}
        return sorted(below - tables.at_work(self._server.connection, self._workers.names))

    def _zygotes(self) -> list[Process]:
        return [(zygote, member.name) for member in self._steady() if (zygote := member.zygote()) is not None]

    def _strike(self, fault: Fault, process: Process) -> bool:
        fault.pid, fault.worker = process
        return self._workers.strike(fault.pid)

    def _strike_and_import_badly(self, fault: Fault, process: Process) -> bool:
        if struck := self._strike(fault, process):
            self._import_badly(fault.worker)
        return struck

    def _import_badly(self, name: str) -> None:
        """Make the next imports of one worker slow, or make them fail."""
        path = self._workers.trouble(name)
        path.write_text(self._rng.choice((jobs.BROKEN, "slow")))
        self._later(self._rng.uniform(*SPELL_S), lambda: path.unlink(missing_ok=True))

    def _steady(self) -> list[Member]:
        now = time.monotonic()
        return [one for one in self._workers.members if one.steady(now) and one.name not in self._left_alone()]

    def _left_alone(self) -> set[str]:
        return {name for name, alone in self.alone.items() if not self._lost_alone.isdisjoint(alone)}

    def _not_spared(self) -> list[Member]:
        now = time.monotonic()
        return [member for member in self._steady() if member.spared_until < now]

    def _mortal(self) -> list[Member]:
        """Workers of which one may die, because another one lives."""
        return self._not_spared() if len(self._steady()) > 1 else []

    def _kill_beside_witness(self, fault: Fault, member: Member) -> None:
        witness = max((one for one in self._steady() if one is not member), key=lambda one: one.spared_until)
        witness.spared_until = time.monotonic() + WITNESS_S
        self._kill(fault, member)

    def _kill(self, fault: Fault, member: Member) -> None:
        """If more than the supervisor dies, zygote and parents are frozen first: they would see its end and act."""
        below = linux.descendants_of(member.process.pid)
        zygote = None if fault.kind is Kind.SUPERVISOR else member.zygote()
        if zygote is not None:
            for pid in (zygote, *member.parents()):
                linux.kill(pid, signal.SIGSTOP)
        member.killed = True
        fault.at_s = self._clock()
        member.process.kill()
        if zygote is not None:
            linux.kill(zygote)
        if fault.kind is Kind.SUPERVISOR:
            self._lasting.append(self._watch_orphans(fault, below))
        elif fault.kind is not Kind.HEAD:
            for pid in below:
                self._workers.strike(pid)

    def _watch_orphans(self, fault: Fault, pids: list[int]) -> Iterator[None]:
        """Note when the processes below a killed supervisor are gone, or that they take too long."""
        died = time.monotonic()
        while pids := [pid for pid in pids if linux.lives(pid) and self._workers.is_ours(pid)]:
            if time.monotonic() - died > ORPHANS_S:
                break
            yield
        fault.orphans_gone_s = time.monotonic() - died

    def _all_at_once(self) -> list[list[Member]]:
        """Also workers that are still starting. Not while one is a witness, is frozen, or is dead and not replaced."""
        members, now = self._workers.members, time.monotonic()
        spared = any(one.killed or one.frozen or one.spared_until > now for one in members) or self._left_alone()
        return [members] if len(self._steady()) > 1 and not spared else []

    def _kill_all(self, fault: Fault, members: list[Member]) -> None:
        for member in members[1:]:
            another = replace(fault, worker=member.name, watched=False)
            self._kill(another, member)
            self._history.faults.append(another)
        fault.worker, fault.watched = members[0].name, False
        self._kill(fault, members[0])

    def _deploy(self, fault: Fault, member: Member) -> None:
        """SIGTERM, and SIGKILL of the whole tree before its jobs can end."""
        member.killed = True
        member.process.terminate()
        self._later(PATIENCE_S, lambda: self._kill(fault, member) if member.process.poll() is None else None)

    def _tell_to_stop(self, fault: Fault, member: Member) -> None:
        """SIGTERM to every process of a worker, as an init system sends it. The children get it first."""
        member.killed = True
        for pid in [*reversed(linux.descendants_of(member.process.pid)), member.process.pid]:
            linux.kill(pid, signal.SIGTERM)

    def _reload(self, fault: Fault, member: Member) -> None:
        """SIGHUP. The import that follows succeeds, is slow, or fails."""
        if self._rng.random() < 2 / 3:
            self._import_badly(member.name)
        linux.kill(member.process.pid, signal.SIGHUP)

    def _freeze(self, fault: Fault, member: Member) -> None:
        member.freeze()
        self._later(self._rng.uniform(*FREEZE_S), member.thaw)

    def _short_leases(self) -> list[Member]:
        """Workers with a short lease that run jobs."""
        at_work = {name for _, name in tables.at_work(self._server.connection, self._workers.names)}
        return [one for one in self._not_spared() if one.short_lease and one.name in at_work]

    def _completing(self) -> list[Member]:
        """Workers with a short lease that are about to complete a job, so that the fence is tried."""
        return [one for one in self._short_leases() if tables.ready(self._server.connection, one.name)]

    def _freeze_past_lease(self, fault: Fault, member: Member) -> None:
        member.freeze(whole_tree=fault.kind is Kind.PAUSE)
        late: dict[int, UUID] = {}
        with contextlib.suppress(psycopg.OperationalError):  # The worker is frozen anyway.
            late = tables.ready(self._server.connection, member.name) if fault.kind is Kind.PAUSE else {}
        self._lasting.append(self._sleep_past_lease(fault, member, late))

    def _sleep_past_lease(self, fault: Fault, member: Member, late: dict[int, UUID]) -> Iterator[None]:
        """Take the jobs from the worker, as if `outlive reap` had run. The children wake when other workers have begun
        these jobs again, and the supervisor wakes later. So all that they write is late."""
        yield from self._wait(SHORT_LEASE_S + 0.2)
        for _ in self._wait(TAKEN_S):
            with contextlib.suppress(psycopg.OperationalError):
                db.run(self._server.connection, store.expire())
                fault.taken = tables.begun_again(self._server.connection, late)
                if fault.taken >= late.keys():
                    break
            yield
        member.thaw_below()
        yield from self._wait(self._rng.uniform(*FREEZE_S))
        member.thaw()

    def _any_server(self) -> list[Server]:
        return [self._server]

    def _own_server(self) -> list[Server]:
        """Only a temporary server: in a configured database, other sessions would suffer. Not while it restarts."""
        return [self._server] if self._server.own and not self.restarting() else []

    def _lock(self, fault: Fault, server: Server) -> bool:
        """Lock rows in a foreign transaction. False if there is nothing to lock."""
        stranger = psycopg.connect(server.url, connect_timeout=5, application_name="stranger")
        locked: list[UUID | None] = []
        with contextlib.suppress(psycopg.Error):
            locked = tables.lock(stranger, self._rng)
        fault.jobs = frozenset(id for id in locked if id is not None)
        fault.lasted_s = self._rng.uniform(*SPELL_S) if locked else 0.0
        self._later(fault.lasted_s, stranger.close)  # This rolls back.
        return bool(locked)

    def _pause_queue(self, fault: Fault, server: Server) -> None:
        db.run(server.connection, store.pause_queue(jobs.ASIDE))
        self._later(self._rng.uniform(*PAUSED_S), lambda: db.run(server.connection, store.resume_queue(jobs.ASIDE)))

    def _forbid_writing(self, fault: Fault, server: Server) -> None:
        server.allow_writing(False)

        def end() -> None:
            server.allow_writing(True)
            self._history.outages.append((fault.at_s, self._clock()))

        self._later(self._rng.uniform(*SPELL_S), end)

    def _sessions(self) -> list[int]:
        return self._server.sessions()

    def _end_session(self, fault: Fault, pid: int) -> None:
        self._server.end_session(pid)

    def _restart(self, fault: Fault, server: Server) -> None:
        """In a thread, so that other faults can happen meanwhile."""
        away_s = 0.0
        if fault.kind is Kind.OUTAGE:
            away_s = self._rng.uniform(*AWAY_S)
            self._calm_at = time.monotonic() + away_s + CALM_S
        self._restarter = threading.Thread(target=server.restart, args=(away_s,), daemon=True)
        self._restarter.start()

    def _clusters(self) -> list[Cluster]:
        """The cluster, when it has recovered from the fault before."""
        cluster = self._server.cluster
        return [cluster] if cluster and not self.restarting() and time.monotonic() > self._calm_at else []

    def _fail_over(self, fault: Fault, cluster: Cluster) -> None:
        """In a thread too."""
        self._restarter = threading.Thread(target=self._until_calm, args=(fault, cluster), daemon=True)
        self._restarter.start()

    def _until_calm(self, fault: Fault, cluster: Cluster) -> None:
        cluster.fail_over(fault)
        self._history.outages.append((fault.at_s, fault.writable_s or self._clock()))
        self._calm_at = time.monotonic() + BETWEEN_S

    def _calm_server(self) -> list[Server]:
        return self._own_server() if time.monotonic() > self._calm_at else []

    def _machine(self) -> list[list[Member]]:
        """All workers. Not while another fault freezes one, or ends one: the next would live on a frozen machine."""
        members = self._workers.members
        calm = time.monotonic() > self._calm_at and not any(one.frozen or one.killed for one in members)
        return [members] if calm and len(self._steady()) > 1 else []

    def _freeze_machine(self, fault: Fault, members: list[Member]) -> None:
        seconds = self._rng.uniform(*MACHINE_S)
        self._calm_at = time.monotonic() + seconds + CALM_S
        for member in members:
            member.freeze(whole_tree=True)
        self._later(seconds, partial(self._wake_machine, fault, list(members)))

    def _wake_machine(self, fault: Fault, members: list[Member]) -> None:
        for member in members:
            member.thaw()
        fault.lasted_s = self._clock() - fault.at_s

    def _squeezable(self) -> list[tuple[Process, Group]]:
        found = ((zygote, squeeze.group_of(zygote[0])) for zygote in self._zygotes())
        return [(zygote, group) for zygote, group in found if group is not None]

    def _squeeze(self, fault: Fault, victim: tuple[Process, Group]) -> None:
        fault.pid, fault.worker = victim[0]
        self._lasting.append(self._eat(fault, victim[1]))

    def _eat(self, fault: Fault, group: Group) -> Iterator[None]:
        """The fault happens when the kernel kills."""
        waited = self._wait(SQUEEZED_S)
        with contextlib.closing(squeeze.squeeze(fault.pid, group)) as squeezing:
            for killed in squeezing:
                if killed:
                    fault.at_s = self._clock()
                if next(waited, "over") == "over":
                    break
                yield
