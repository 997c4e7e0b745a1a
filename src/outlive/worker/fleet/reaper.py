"""The reaper: it declares workers dead, ends their attempts as lost, quarantines killers, and prunes.

A worker is declared dead:
1. if the lock that it holds while it lives (liveness.py) is missing in two checks, half a second apart, or three
   seconds apart just after the reaper itself has reconnected (absences.py);
2. if ten seconds have passed since a reaper first missed it after a start of the database server;
3. if its last heartbeat is older than its own `dead_s`. This finds a worker that is frozen, or behind a pooler, where
   a lock proves nothing.
In any case, an attempt is lost when its lease expires, whatever is known about its worker. After an outage, workers
first get the time to renew.

The reaper runs in the workers that are watchers (seat.py) and as `outlive reap`. All that it does is idempotent and
fenced by token: any number of reapers may run at once, and a false verdict costs a repeated run, never a second
completion.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import socket
import time
from collections.abc import Callable
from uuid import UUID

import psycopg

from outlive import linux, store
from outlive.config import Config
from outlive.humanize import counted, short_id
from outlive.model import Dead, Lost
from outlive.statement import Statement
from outlive.worker.fleet import schedules
from outlive.worker.fleet.absences import CAUTIOUS_MISSING_S, Absences
from outlive.worker.fleet.clocks import Clocks
from outlive.worker.fleet.pruning import Pruning
from outlive.worker.limits import cgroups
from outlive.worker.processes.zygote_handle import SUPERVISOR
from outlive.worker.reporting.alerts import Alerts, Announcements
from outlive.worker.reporting.telemetry import Telemetry
from outlive.worker.session import Session

OTHERS_RECONNECT_S = 10.0
"""How long other workers may take to reconnect to a server that was away."""
NEVER_LOCKED = 0
"""The key of a worker that has taken no lock since the server started."""
NEVER_LOCKED_S = 10.0
"""How long a worker may take to lock again after the server has started. A worker that died with the server is declared
dead at most 15 s after the server is back: some seconds until a reaper connects, these ten, and a check."""
LATELY_S = 600.0
"""Whose attempts are looked for every second: those of workers that ended so lately. A sweep looks for all."""
_LOCK = "outlive sweep"

_log = logging.getLogger("outlive.worker")


class Reaper:
    def __init__(self, session: Session, config: Config, alerts: Alerts, own_id: UUID | None = None) -> None:
        self.session, self.alerts = session, alerts
        self._config, self._own_id = config, own_id
        self.announcements = Announcements(session, config, alerts)
        self.attempts_ended = 0
        self.telemetry: Telemetry | None = None
        """Reports lost attempts, which their own workers can't report."""
        self.checked_at = time.monotonic()
        self.clocks, self._pruning = Clocks(session, config), Pruning(session, config)
        self.absences, self._began_at = Absences(), time.monotonic()
        self._skipped = False
        """The last sweep was left to another reaper."""

    # Every second: dead workers

    async def check_once(self) -> None:
        self.checked_at = time.monotonic()
        await self.check()
        await asyncio.sleep(self.absences.next_check_s)

    async def check(self) -> None:
        """Declare workers dead whose locks are missing, and end the attempts of dead workers."""
        ticks = self._own_id is not None  # The tick of a worker compares clocks and looks for alerts.
        if not ticks:
            await self.clocks.compare()
        absent = await self.session.run(store.absent())
        # The statement may have reconnected: then earlier checks are forgotten before its rows count. Nothing is
        # awaited in between, because other services use the same session.
        now = self._note_connection()
        others = [one for one in absent if one.worker != self._own_id]
        self.absences.found({one.worker: one.key for one in others if one.reason == "lock missing"}, now)
        if dead := self.absences.proven(now) | await self._never_locked(others, now):
            self._clean_up_after(await self.session.run(store.declare_dead(dead)))
        await self._reap(lately_s=LATELY_S)
        if not ticks:
            await self.announcements.each_second()

    async def _never_locked(self, absent: list[store.Absent], now: float) -> dict[UUID, int]:
        """2. The workers that have taken no lock in ten seconds since the server started."""
        unseen = [one.worker for one in absent if one.reason == "never locked"]
        if not unseen or not await self.clocks.trusted():
            return {}
        missed = await self.session.run(store.note_missed(unseen, for_s=NEVER_LOCKED_S))
        had_time = now - self.absences.reconnected_at > CAUTIOUS_MISSING_S
        return dict.fromkeys(missed, NEVER_LOCKED) if had_time else {}

    def _note_connection(self) -> float:
        self.absences.connected(self.session.generation, now := time.monotonic())
        return now

    def _clean_up_after(self, dead: list[Dead]) -> None:
        """Log deaths, and kill the processes that dead workers have left on this machine. Those of living workers have
        a variable that names their supervisor."""
        for worker in dead:
            _log.error(
                "Dead worker detected: %s (%s on %s, pid %d): %s; it had %s",
                short_id(worker.id), worker.name, worker.hostname, worker.pid, worker.why,
                counted(worker.running, "job"), extra={"worker": worker.id},
            )  # fmt: skip
        if any(worker.hostname == socket.gethostname() for worker in dead):
            linux.kill_orphans(SUPERVISOR)
            cgroups.remove_orphans()

    async def _reap(self, *, lately_s: float | None = None) -> None:
        """End the attempts of dead workers, also of those that another reaper declared dead."""
        await self._end_lost(functools.partial(store.reap, lately_s=lately_s), "its worker died")

    async def _end_lost(self, statement: Callable[..., Statement[list[Lost]]], why: str) -> None:
        after = 0
        while lost := await self.session.run(statement(after=after)):  # A batch at a time.
            after = max(job.token for job in lost)
            ended = [job for job in lost if job.state is not None]
            self.attempts_ended += len(ended)
            for job in ended:
                about = {"job_id": job.id, "task": job.task, "worker": job.worker, "state": job.state}
                held = "job %s, held by %s: %s; it is %s"
                _log.error(held, short_id(job.id), job.worker_name, why, job.state, extra=about)
            if self.telemetry is not None and self.telemetry.receivers:
                for run in await self.session.run(store.lost_runs([job.token for job in ended])):
                    self.telemetry.lost(run)

    # Every `sweep_s`: everything else

    async def sweep_once(self) -> None:
        await self.sweep()
        await asyncio.sleep(self._config.sweep_s)

    async def sweep(self, *, anyway: bool = False) -> None:
        """Declare silent workers dead, end lost attempts, quarantine killers, prune.

        Lost attempts must end on time, so every reaper does that. One that finds another sweeping skips the rest, but
        not twice in a row: the other may hang. `anyway`: never skip, because this is the only run.
        """
        await self.clocks.compare()
        await self._give_up_silent(anyway=anyway)
        await self._reap()
        await self._expire()
        pooled = self.session.pooled  # A pooler gives each statement another session: a lock would protect nothing.
        locked = not pooled and await self.session.run(store.try_lock(_LOCK))
        self._skipped = not (locked or pooled or anyway or self._skipped)
        if self._skipped:
            return
        try:
            await self.session.run(store.quarantine_killers())
            await self.session.run(store.requeue_missed())
            await self.announcements.quarantined()
            await self.announcements.crashing_tasks()
            await self.announcements.unserved()
            await schedules.check(self.session)
            await self._pruning.run_once()
        finally:
            if locked:
                with contextlib.suppress(psycopg.Error):  # A broken connection has released it.
                    await self.session.run(store.unlock(_LOCK))

    async def _give_up_silent(self, *, anyway: bool) -> None:
        """3. Declare workers dead that have sent no heartbeat for long. A reaper that has just begun gives them the
        time for one: the database may have been out of reach."""
        if await self.clocks.trusted():
            known_s = math.inf if anyway else time.monotonic() - self._began_at
            since_s = min(self._connected_s(), known_s)
            silent = store.give_up_silent(by=self.clocks.database_time(), reconnected_s=since_s)
            self._clean_up_after(await self.session.run(silent))

    async def _expire(self) -> None:
        """End attempts whose lease has expired. While the server was away, no lease could be renewed."""
        time_to_renew_s = OTHERS_RECONNECT_S + self._config.renew_s
        if await self.clocks.trusted() and self._connected_s() > time_to_renew_s:
            expire = functools.partial(store.expire, by=self.clocks.database_time(), young_s=time_to_renew_s)
            await self._end_lost(expire, "its lease expired")

    def _connected_s(self) -> float:
        """For how long the database was not away, as far as this reaper knows."""
        return self._note_connection() - self.absences.reconnected_at
