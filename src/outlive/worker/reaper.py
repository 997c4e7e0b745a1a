"""The reaper: it finds dead workers and expired leases, and frees their jobs.

It runs in every worker and as `outlive reap`. Everything that it does is idempotent and fenced by token: any number of
reapers may run at once, and a false verdict costs a repeated run, never a second completion. The sweep takes a lock
only to save work. Freeing jobs must happen on time, so every reaper does it, without the lock.
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
from outlive.worker.session import Session
from outlive.worker.zygote_handle import SIGN

LOOK_S = 1.0
SECOND_LOOK_S = 0.5
"""The least time between two checks that count, and when the second one follows if the first found a missing lock."""
REPLACED_S = 5.0
PATIENT_LOOK_S = 3.0
"""How long a lock must be missing in the first `REPLACED_S` seconds after the reaper's own session was replaced.

Whatever ended that session may have ended others too, and a living worker reconnects within a second.
"""
RECONNECT_S = 10.0
"""How long other workers may take to reconnect to a server that was away."""
UNSEEN_S = 10.0
"""How long a worker may take to hold its lock again after the server has started.

A worker that died with the server is declared dead at most 15 s after the server is back: some seconds until a reaper
connects, these ten, and a check.
"""
UNSEEN = 0
"""The key of a worker without a lock since the server started."""
LEAVE_TO_OTHERS_S = 2.0
CRASHING_JOBS = 5
CRASHING_WITHIN_S = 600.0
CLOCK_JUMP_S = 5.0
"""More than an answer may be late, and much less than a lease."""
LATE_S = 1.0
_LOCK = "outlive sweep"
_SWEEPS_WITHOUT = 2

_log = logging.getLogger("outlive.worker")


class Reaper:
    def __init__(
        self,
        session: Session,
        config: Config,
        alerts: Alerts,
        worker: UUID | None = None,
        on_declared_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self.session, self.config, self.alerts, self.worker = session, config, alerts, worker
        self.declared_dead = False
        """Other workers have declared this one dead."""
        self._on_declared_dead = on_declared_dead
        self.freed = 0
        """How many attempts of other workers it has ended."""
        self._missing: dict[UUID, tuple[int, float]] = {}
        """Workers whose lock was missing in the last check, with the lock's key, and since when."""
        self._unseen_s: dict[UUID, float] = {}
        """Workers without a lock since the server started, and for how long checks have found that.

        This count goes on when the server crashes again: living workers take their locks before the next check.
        """
        self._checked: float | None = None
        """When the last check on this connection was."""
        self._generation = 0
        self._since = 0.0
        """When this reaper reconnected, if its connection was lost."""
        self._offset_s: float | None = None
        self._patient_until = 0.0
        self._not_led = 0

    # Dead workers: every second

    async def check_once(self) -> None:
        await self.check()
        await asyncio.sleep(SECOND_LOOK_S if self._missing else LOOK_S)

    async def check(self) -> None:
        """Declare workers dead whose lock is missing in two consecutive checks on the same connection."""
        await self._compare_clocks()
        absent = await self.session.run(store.absent(self.worker))
        now = time.monotonic()
        self._notice_reconnect(now)
        # A check that comes late proves nothing about the time before it.
        passed_s = 0.0 if self._checked is None else min(now - self._checked, 2 * LOOK_S)
        self._checked = now
        missing: dict[UUID, tuple[int, float]] = {}
        unseen_s: dict[UUID, float] = {}
        for worker, key in absent.items():
            if key is None:
                self.hear_own_death()
            elif worker != self.worker and key == UNSEEN:
                unseen_s[worker] = self._unseen_s.get(worker, 0.0) + passed_s
            elif worker != self.worker:
                before = self._missing.get(worker)
                missing[worker] = before if before is not None and before[0] == key else (key, now)
        self._missing, self._unseen_s = missing, unseen_s
        proof_s = SECOND_LOOK_S if now - self._since > REPLACED_S else PATIENT_LOOK_S
        dead = {worker: key for worker, (key, since) in missing.items() if now - since >= proof_s}
        dead |= {worker: UNSEEN for worker, for_s in unseen_s.items() if for_s >= UNSEEN_S}
        if dead:
            buried = await self.session.run(store.declare_dead(dead))
            self._announce_dead(buried, "its session is gone")
        await self._free(store.reap, "its worker died")  # Even if another reaper declared it dead, and then died.
        await self._announce_quarantined()
        await self._announce_breakers()

    def hear_own_death(self) -> None:
        self.declared_dead = True
        self._on_declared_dead()

    async def _announce_quarantined(self) -> None:
        """Announce as many as the alerts have room for. A worker without a command leaves them to others at first."""
        after_s = 0.0 if self.config.on_quarantine else LEAVE_TO_OTHERS_S
        for killer in await self.session.run(store.untold_killers(batch=self.alerts.room, after_s=after_s)):
            _log.warning("Job %s is quarantined: %s", killer["id"], killer["details"])
            self.alerts.send(self.config.on_quarantine, "quarantine", killer)

    async def _announce_breakers(self) -> None:
        for source in await self.session.run(store.breakers()):
            if source["paused_until"] is None:
                _log.warning("the source %s works again: its breaker is closed", source["name"])
            else:
                _log.error(
                    "the source %s is paused until %s, after %d failures in a row",
                    source["name"],
                    source["paused_until"],
                    source["failure_streak"],
                )
            self.alerts.send(self.config.on_source_paused, "source_paused", source)

    def _notice_reconnect(self, now: float) -> None:
        """Checks on another connection prove nothing. While the server was away, no heartbeat could arrive."""
        if self._generation != self.session.generation:
            self._since = now if self._generation else 0.0
            self._generation = self.session.generation
            self._missing = {}
            self._checked = None

    def _announce_dead(self, dead: Sequence[Dead], why: str) -> None:
        if any(one.hostname == socket.gethostname() for one in dead):
            kernel.kill_orphans(SIGN)  # Its zygote may be dead too, and its children still run.
            cgroups.remove_orphans()
        for one in dead:
            _log.error(
                "Dead worker detected: %s (%s on %s, pid %d): %s; it had %d jobs",
                one.id, one.name, one.hostname, one.pid, why, one.running,
            )  # fmt: skip
            facts = {name: getattr(one, name) for name in ("id", "name", "hostname", "pid", "last_seen", "running")}
            self.alerts.send(self.config.on_worker_dead, "worker_dead", {**facts, "why": why})

    async def free(self) -> None:
        """End the attempts of dead workers, and those whose lease has expired."""
        await self._free(store.reap, "its worker died")
        if time.monotonic() >= self._patient_until:
            await self._free(store.expire, "its lease expired")

    async def _free(self, reap: Callable[[], Statement[list[Lost]]], why: str) -> None:
        while lost := await self.session.run(reap()):
            self.freed += len(lost)
            for one in lost:
                _log.error("job %s, held by %s: %s; it is %s", one.id, one.locked_by, why, one.state)

    # Everything else: every sweep

    async def sweep_once(self) -> None:
        await self.sweep()
        await asyncio.sleep(self.config.sweep_s)

    async def sweep(self, *, anyway: bool = False) -> None:
        """Free jobs, declare silent workers dead, quarantine killers, prune.

        `anyway`: sweep without the leader lock; a one-shot run cannot wait for it.
        """
        await self._compare_clocks()
        await self.free()
        led = self.session.pooled or await self.session.run(store.try_lock(_LOCK))
        self._not_led = 0 if led else self._not_led + 1
        if 0 < self._not_led < _SWEEPS_WITHOUT and not anyway:
            return  # Another reaper does the rest. If it hangs, the next sweep goes on without the lock.
        self._not_led = 0
        try:
            now = time.monotonic()
            self._notice_reconnect(now)
            if now >= self._patient_until and now - self._since > 1.5 * self.config.heartbeat_s + RECONNECT_S:
                limits = {"stale_s": self.config.stale_s, "dead_s": self.config.dead_s}
                dead = await self.session.run(store.give_up_silent(**limits))
                self._announce_dead(dead, f"no heartbeat for {self.config.dead_s:g} s")
                await self.free()
            await self.session.run(store.quarantine_killers())
            await self._announce_quarantined()
            await self._announce_crashing_tasks()
            await self._prune()
        finally:
            if led and not self.session.pooled:
                await self.session.run(store.unlock(_LOCK))

    async def _announce_crashing_tasks(self) -> None:
        for task in await self.session.run(store.crashing_tasks(jobs=CRASHING_JOBS, within_s=CRASHING_WITHIN_S)):
            _log.error("task %(task)s keeps crashing: %(crashes)d crashes of %(jobs)d jobs in ten minutes", task)
            self.alerts.send(self.config.on_quarantine, "task_keeps_crashing", task)

    async def _prune(self) -> None:
        keep_s = {
            State.SUCCEEDED: self.config.keep_finished_s,
            State.CANCELLED: self.config.keep_finished_s,
            State.FAILED: self.config.keep_failed_s,
        }
        for state, old_s in keep_s.items():
            more = True
            while more:
                _, more = await self.session.run(store.prune_finished(state, keep_s=old_s))
        await self.session.run(store.prune_crashes(keep_s=self.config.keep_failed_s))
        await self.session.run(store.prune_workers(keep_s=KEEP_WORKERS_S))

    async def _compare_clocks(self) -> None:
        """If the database's clock jumps, leases and heartbeats look old: give every worker the time to renew them."""
        before = time.monotonic()
        offset_s = await self.session.run(store.clock()) - before
        if time.monotonic() - before > LATE_S:
            return  # The answer does not say when in between the database read its clock.
        jumped_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        self._offset_s = offset_s
        if abs(jumped_s) > CLOCK_JUMP_S:
            wait_s = 2 * max(self.config.renew_s, self.config.heartbeat_s)
            self._patient_until = before + wait_s
            _log.error(
                "the database's clock jumped by %.0f s against this machine's: no worker is declared dead for %g s",
                jumped_s,
                wait_s,
            )
