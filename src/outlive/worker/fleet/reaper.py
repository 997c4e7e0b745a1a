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
import math
import socket
import time
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import psycopg

from outlive import linux, store
from outlive.config import KEEP_SCHEDULES_S, KEEP_UNUSED_S, KEEP_WORKERS_S, Config
from outlive.humanize import counted, short_id
from outlive.model import Dead, Lost
from outlive.statement import Statement
from outlive.states import State
from outlive.worker import log
from outlive.worker.fleet import schedules
from outlive.worker.fleet.absences import CAUTIOUS_MISSING_S, Absences
from outlive.worker.limits import cgroups, running_time
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
CLOCK_JUMP_S = 5.0
"""More than an answer may be late, and much less than a lease. The same for a process that stood still."""
LATE_ANSWER_S = 1.0
MAX_SLOWEST_S = 60.0
"""How slow a worker may be for all others to wait for it after a jump of a clock."""
LOOK_AGAIN_S = 3600.0
"""How soon jobs are looked at again that were not pruned."""
_LOCK = "outlive sweep"


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
            log.error(
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
                log.error(held, short_id(job.id), job.worker_name, why, job.state, extra=about)
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


class Clocks:
    """Whether leases and heartbeats are as old as they look: clocks may jump, and this process may stand still."""

    def __init__(self, session: Session, config: Config) -> None:
        self._session, self._slowest_s = session, max(config.renew_s, config.heartbeat_s)
        self.offset_s: float | None = None
        """The database's clock minus this process' monotonic clock; None if it is not known yet."""
        self._distrusted_until = 0.0
        self._behind_s = running_time.behind_s()

    def database_time(self) -> float | None:
        """The database's time by this process' clock: a jump after the last comparison is not in it."""
        return None if self.offset_s is None else time.monotonic() + self.offset_s

    async def compare(self) -> None:
        asked_at = time.monotonic()
        await self.note(await self._session.run(store.clock()), asked_at)

    async def note(self, database_time: float, asked_at: float) -> None:
        """Notice a jump of the database's clock, for which it was asked at that moment of the monotonic clock."""
        if time.monotonic() - asked_at > LATE_ANSWER_S:
            return  # The answer does not say when in between the database read its clock.
        offset_s = database_time - asked_at
        jumped_s = 0.0 if self.offset_s is None else offset_s - self.offset_s
        self.offset_s = offset_s
        if abs(jumped_s) > CLOCK_JUMP_S:
            await self._distrust(f"the database's clock jumped by {jumped_s:.0f} s against this machine's")

    async def trusted(self) -> bool:
        """If this process stood still, all workers may have, and the database with them."""
        stood_s = running_time.behind_s() - self._behind_s
        self._behind_s += stood_s
        if stood_s > CLOCK_JUMP_S:
            await self._distrust(f"this process stood still for {stood_s:.0f} s")
        return time.monotonic() >= self._distrusted_until

    async def _distrust(self, why: str) -> None:
        """Give every worker the time to renew its leases and to send a heartbeat."""
        slowest_s = await self._session.run(store.slowest(self._slowest_s))
        # One worker with a heartbeat an hour must not suspend the leases of all others: its own dead_s is longer still.
        wait_s = 2 * min(slowest_s, MAX_SLOWEST_S)
        self._distrusted_until = time.monotonic() + wait_s
        log.error("%s: for %g s no lease expires and no worker is declared dead for its heartbeat", why, wait_s)


class Pruning:
    """What is old enough is deleted, some thousands of rows at a time. `outlive prune` does the same."""

    def __init__(self, session: Session, config: Config) -> None:
        self._session, self._config = session, config
        self._marks: dict[State, datetime] = {}
        """The end of the last job of each state that was considered."""
        self._marked_at = self._forgot_at = -math.inf

    async def run_once(self) -> int:
        """Delete all that is old enough. Returns how many jobs."""
        run, keep_s = self._session.run, self._config.keep_s
        pruned = sum([await self._prune_finished(state, keep_s[state]) for state in keep_s])
        await run(store.prune_batches(keep_s=max(keep_s.values())))
        await run(store.prune_schedules(keep_s=KEEP_SCHEDULES_S))
        gone, more = 1, True
        while gone and more:  # Jobs that another transaction has locked wait for the next sweep.
            gone, more = await run(store.prune_expired())
            pruned += gone
        await run(store.prune_awaited())
        await run(store.prune_watched())
        await run(store.prune_crashes(keep_s=self._config.keep_failed_s))
        await run(store.prune_workers(keep_s=KEEP_WORKERS_S))
        await run(store.prune_audit())
        if (now := time.monotonic()) - self._forgot_at > LOOK_AGAIN_S:  # It may read all jobs.
            self._forgot_at = now
            await run(store.prune_unused(keep_s=KEEP_UNUSED_S))
        return pruned

    async def _prune_finished(self, state: State, keep_s: float) -> int:
        """Jobs of some tasks are kept for longer than others. They are passed over once, and looked at again an hour
        later, as are jobs that another transaction has locked."""
        now = time.monotonic()
        if now - self._marked_at > LOOK_AGAIN_S:
            self._marks, self._marked_at = {}, now
        pruned, more = 0, True
        while more:
            after = self._marks.get(state)
            gone, more, mark = await self._session.run(store.prune_finished(state, keep_s=keep_s, after=after))
            pruned += gone
            if mark is not None:
                self._marks[state] = mark
        return pruned
