"""The reaper: finds dead workers and ended leases, and frees what they had.

It runs in every worker and as `outlive reap`. Everything it does is idempotent and fenced by token: any number of
reapers may do it at once, and a false verdict costs a repeated run, never a second completion. The sweep's lock only
spares work: what must happen on time, freeing jobs, everybody does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from outlive import kernel, store
from outlive.config import KEEP_WORKERS_S, Config
from outlive.model import Dead, Lost
from outlive.statement import Statement
from outlive.states import State
from outlive.worker import cgroups
from outlive.worker.alerts import Alerts
from outlive.worker.line import Line
from outlive.worker.nursery import SIGN

LOOK_S = 1.0
SECOND_LOOK_S = 0.5
"""How far apart two looks must be at least, and how soon the second follows when the first has found somebody."""
REPLACED_S = 5.0
PATIENT_LOOK_S = 3.0
"""How long a lock must be missing in the first seconds after the reaper's own session was replaced.

Whatever ended it may have ended others too, and a living worker tries again at least every second.
"""
RECONNECT_S = 10.0
"""How long others may take to find a server that was away."""
UNSEEN_S = 10.0
"""How long after a start or crash of the server a worker may take to show life again.

A worker that died with the server is declared dead, and its jobs are free, at most 15 s after the server is back: some
seconds to connect, these ten, and a look.
"""
UNSEEN = 0
"""Stands for the key of a worker that has shown no life since the server came back."""
LEAVE_TO_OTHERS_S = 2.0
CRASHING_JOBS = 5
CRASHING_WITHIN_S = 600.0
CLOCK_JUMP_S = 5.0
"""More than an answer may be late, and far less than a lease."""
LATE_S = 1.0
_LOCK = "outlive sweep"
_SWEEPS_WITHOUT = 2

_log = logging.getLogger("outlive.worker")


class Reaper:
    def __init__(self, line: Line, config: Config, alerts: Alerts, worker: UUID | None = None) -> None:
        self.line, self.config, self.alerts, self.worker = line, config, alerts, worker
        self.given_up = False
        """Others think that this worker is dead."""
        self.freed = 0
        """How many attempts of others it has ended."""
        self._seen: dict[UUID, tuple[int, float]] = {}
        """Workers without their lock in the last look, with which key, and since when."""
        self._unseen_s: dict[UUID, float] = {}
        """Workers that have shown no life since the server came back, and for how long looks have found that. A server
        that crashes again and again does not begin this count again: each time the living come back before it looks.
        """
        self._looked: float | None = None
        """When it looked last, through this session."""
        self._session = 0
        self._since = 0.0
        """When the server was back, if it was away."""
        self._offset_s: float | None = None
        self._patient_until = 0.0
        self._not_led = 0

    # Workers that died: every second

    async def look_once(self) -> None:
        """One look at who holds no lock, and a pause until the next."""
        await self.look()
        await asyncio.sleep(SECOND_LOOK_S if self._seen else LOOK_S)

    async def look(self) -> None:
        await self._compare_clocks()
        absent = await self.line.run(store.absent(self.worker))
        now = time.monotonic()
        self._notice_session(now)
        # A look that comes late saw nothing meanwhile.
        passed_s = 0.0 if self._looked is None else min(now - self._looked, 2 * LOOK_S)
        self._looked = now
        seen: dict[UUID, tuple[int, float]] = {}
        unseen_s: dict[UUID, float] = {}
        for worker, key in absent.items():
            if key is None:
                self.given_up = True
            elif worker != self.worker and key == UNSEEN:
                unseen_s[worker] = self._unseen_s.get(worker, 0.0) + passed_s
            elif worker != self.worker:
                known = self._seen.get(worker)
                seen[worker] = known if known is not None and known[0] == key else (key, now)
        self._seen, self._unseen_s = seen, unseen_s
        proof_s = SECOND_LOOK_S if now - self._since > REPLACED_S else PATIENT_LOOK_S
        convicted = {worker: key for worker, (key, since) in seen.items() if now - since >= proof_s}
        convicted |= {worker: UNSEEN for worker, for_s in unseen_s.items() if for_s >= UNSEEN_S}
        if convicted:
            dead = await self.line.run(store.declare_dead(convicted))
            self._mourn(dead, "its session is gone")
        await self._free(store.reap, "its worker died")  # Also if whoever buried it died before he came to this.
        await self._tell_caught()
        await self._tell_breakers()

    async def _tell_caught(self) -> None:
        """As many as can be told now; the rest comes next. Who has no command leaves it to others for a while."""
        after_s = 0.0 if self.config.on_quarantine else LEAVE_TO_OTHERS_S
        for killer in await self.line.run(store.untold_killers(batch=self.alerts.room, after_s=after_s)):
            _log.warning("Job %s is quarantined: %s", killer["id"], killer["details"])
            self.alerts.tell(self.config.on_quarantine, "quarantine", killer)

    async def _tell_breakers(self) -> None:
        for source in await self.line.run(store.breakers()):
            if source["paused_until"] is None:
                _log.warning("the source %s is back: its breaker is closed", source["name"])
            else:
                _log.error(
                    "the source %s is paused until %s, after %d failures in a row",
                    source["name"],
                    source["paused_until"],
                    source["failure_streak"],
                )
            self.alerts.tell(self.config.on_source_paused, "source_paused", source)

    def _notice_session(self, now: float) -> None:
        """What was seen through another session proves nothing, and while the server was away nobody could beat."""
        if self._session != self.line.session:
            self._since = now if self._session else 0.0
            self._session = self.line.session
            self._seen = {}
            self._looked = None

    def _mourn(self, dead: Sequence[Dead], why: str) -> None:
        if any(one.hostname == socket.gethostname() for one in dead):
            kernel.kill_orphans(SIGN)  # Its zygote may have died with it.
            cgroups.remove_orphans()
        for one in dead:
            _log.error(
                "Dead worker detected: %s (%s on %s, pid %d): %s; it had %d jobs",
                one.id, one.name, one.hostname, one.pid, why, one.running,
            )  # fmt: skip
            facts = {name: getattr(one, name) for name in ("id", "name", "hostname", "pid", "last_seen", "running")}
            self.alerts.tell(self.config.on_worker_dead, "worker_dead", {**facts, "why": why})

    async def free(self) -> None:
        """End the attempts of dead workers, and those whose lease is over."""
        await self._free(store.reap, "its worker died")
        if time.monotonic() >= self._patient_until:
            await self._free(store.expire, "its lease ended")

    async def _free(self, reap: Callable[[], Statement[list[Lost]]], why: str) -> None:
        """In batches, until none is left."""
        while lost := await self.line.run(reap()):
            self.freed += len(lost)
            for one in lost:
                _log.error("job %s, held by %s: %s; it is %s", one.id, one.locked_by, why, one.state)

    # Everything else: every sweep

    async def sweep_once(self) -> None:
        """What is overdue, and a pause until the next sweep."""
        await self.sweep()
        await asyncio.sleep(self.config.sweep_s)

    async def sweep(self, *, anyway: bool = False) -> None:
        """Somebody who does not come again does all of it `anyway`: he can't wait for a leader to be frozen or not."""
        await self._compare_clocks()
        await self.free()
        led = self.line.pooled or await self.line.run(store.try_lock(_LOCK))
        self._not_led = 0 if led else self._not_led + 1
        if 0 < self._not_led < _SWEEPS_WITHOUT and not anyway:
            return  # Somebody else does the rest. If he is frozen in it, it is done without the lock next time.
        self._not_led = 0
        try:
            now = time.monotonic()
            self._notice_session(now)
            if now >= self._patient_until and now - self._since > 1.5 * self.config.heartbeat_s + RECONNECT_S:
                limits = {"stale_s": self.config.stale_s, "dead_s": self.config.dead_s}
                dead = await self.line.run(store.give_up_silent(**limits))
                self._mourn(dead, f"no heartbeat for {self.config.dead_s:g} s")
                await self.free()
            await self.line.run(store.quarantine_killers())
            await self._tell_caught()
            await self._tell_crashing()
            await self._prune()
        finally:
            if led and not self.line.pooled:
                await self.line.run(store.unlock(_LOCK))

    async def _tell_crashing(self) -> None:
        for task in await self.line.run(store.crashing_tasks(jobs=CRASHING_JOBS, within_s=CRASHING_WITHIN_S)):
            _log.error("task %(task)s keeps crashing: %(crashes)d crashes of %(jobs)d jobs in ten minutes", task)
            self.alerts.tell(self.config.on_quarantine, "task_keeps_crashing", task)

    async def _prune(self) -> None:
        keep_s = {
            State.SUCCEEDED: self.config.keep_finished_s,
            State.CANCELLED: self.config.keep_finished_s,
            State.FAILED: self.config.keep_failed_s,
        }
        for state, old_s in keep_s.items():
            more = True
            while more:
                _, more = await self.line.run(store.prune_finished(state, keep_s=old_s))
        await self.line.run(store.prune_crashes(keep_s=self.config.keep_failed_s))
        await self.line.run(store.prune_workers(keep_s=KEEP_WORKERS_S))

    async def _compare_clocks(self) -> None:
        """A clock of the database that jumps makes leases and heartbeats look old: everybody gets a renewal's time."""
        before = time.monotonic()
        offset_s = await self.line.run(store.clock()) - before
        if time.monotonic() - before > LATE_S:
            return  # Nobody knows when in between the database has looked at its clock.
        jumped_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        self._offset_s = offset_s
        if abs(jumped_s) > CLOCK_JUMP_S:
            wait_s = 2 * max(self.config.renew_s, self.config.heartbeat_s)
            self._patient_until = before + wait_s
            _log.error(
                "the database's clock has jumped by %.0f s against this machine's: nobody is given up for %g s",
                jumped_s,
                wait_s,
            )
