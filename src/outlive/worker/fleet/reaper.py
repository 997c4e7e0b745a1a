"""The reaper: it declares workers dead, ends their attempts as lost, quarantines killers, and prunes.

A worker is declared dead:
1. if the lock that it holds while it lives (liveness.py) is missing in two checks, half a second apart, or three
   seconds apart just after the reaper itself has reconnected (absences.py);
2. if ten seconds have passed since a reaper first missed it after a start of the database server;
3. if its last heartbeat is older than its own `dead_s`. This finds a worker that is frozen, or behind a pooler, where
   a lock proves nothing.
In any case, an attempt is lost when its lease expires, whatever is known about its worker. After an outage, workers
first get the time to renew.

The reaper runs in every worker and as `outlive reap`. All that it does is idempotent and fenced by token: any number
of reapers may run at once, and a false verdict costs a repeated run, never a second completion.
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
from datetime import datetime
from uuid import UUID

import psycopg

from outlive import linux, store
from outlive.config import KEEP_SCHEDULES_S, KEEP_UNUSED_S, KEEP_WORKERS_S, Config
from outlive.humanize import counted, short_id
from outlive.model import Dead, Lost
from outlive.statement import Statement
from outlive.states import State
from outlive.worker.fleet import schedules
from outlive.worker.fleet.absences import CAUTIOUS_MISSING_S, Absences
from outlive.worker.limits import cgroups, running_time
from outlive.worker.processes.zygote_handle import SUPERVISOR
from outlive.worker.reporting.alerts import Alerts, Announcements
from outlive.worker.reporting.telemetry import Telemetry
from outlive.worker.session import Session

OTHERS_RECONNECT_S = 10.0
"""How long other workers may take to reconnect to a server that was away."""
LOOK_AGAIN_S = 3600.0
"""How soon jobs are looked at again that were not pruned."""
CLOCK_JUMP_S = 5.0
"""More than an answer may be late, and much less than a lease. The same for a process that stood still."""
LATE_ANSWER_S = 1.0
MAX_SLOWEST_S = 60.0
"""How slow a worker may be for all others to wait for it after a jump of a clock."""
NEVER_LOCKED = 0
"""The key of a worker that has taken no lock since the server started."""
NEVER_LOCKED_S = 10.0
"""How long a worker may take to lock again after the server has started. A worker that died with the server is declared
dead at most 15 s after the server is back: some seconds until a reaper connects, these ten, and a check."""
_LOCK = "outlive sweep"

_log = logging.getLogger("outlive.worker")


class Reaper:
    def __init__(
        self,
        session: Session,
        config: Config,
        alerts: Alerts,
        own_id: UUID | None = None,
        on_declared_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self.session, self.alerts = session, alerts
        self._config, self._own_id, self._on_declared_dead = config, own_id, on_declared_dead
        self.announcements = Announcements(session, config, alerts)
        self.attempts_ended = 0
        self.telemetry: Telemetry | None = None
        """Reports lost attempts, which their own workers can't report."""
        self.checked_at = time.monotonic()
        self._absences = Absences()
        self.clock_offset_s: float | None = None
        """The database's clock minus this process' monotonic clock."""
        self._clocks_distrusted_until = 0.0
        self._behind_s = running_time.behind_s()
        self._skipped = False
        """The last sweep was left to another reaper."""
        self._marks: dict[State, datetime] = {}
        """The end of the last job of each state that was considered for pruning."""
        self._marked_at = self._forgot_at = -math.inf

    # Every second: dead workers

    async def check_once(self) -> None:
        self.checked_at = time.monotonic()
        await self.check()
        await asyncio.sleep(self._absences.next_check_s)

    async def check(self) -> None:
        """Declare workers dead whose locks are missing, and end the attempts of dead workers."""
        await self._compare_clocks()
        absent = await self.session.run(store.absent(self._own_id))
        # The statement may have reconnected: then earlier checks are forgotten before its rows count. Nothing is
        # awaited in between, because other services use the same session.
        now = self._note_connection()
        if any(one.reason == "declared dead" for one in absent):
            self._on_declared_dead()
        others = [one for one in absent if one.worker != self._own_id]
        unseen = [one.worker for one in others if one.reason == "never locked"]
        self._absences.found({one.worker: one.key for one in others if one.reason == "lock missing"}, now)
        proven = self._absences.proven(now) | await self._missed(unseen, now)
        if proven:
            self._clean_up_after(await self.session.run(store.declare_dead(proven)))
        await self._end_attempts(store.reap, "its worker died")  # Also of workers that another reaper declared dead.
        await self.announcements.deaths()
        await self.announcements.quarantined()
        await self.announcements.breakers()

    async def _missed(self, unseen: list[UUID], now: float) -> dict[UUID, int]:
        """The workers among these that have taken no lock in ten seconds since the server started."""
        if not unseen or not await self._trusts_clocks():
            return {}
        missed = await self.session.run(store.note_missed(unseen, for_s=NEVER_LOCKED_S))
        had_time = now - self._absences.reconnected_at > CAUTIOUS_MISSING_S
        return dict.fromkeys(missed, NEVER_LOCKED) if had_time else {}

    def _note_connection(self) -> float:
        self._absences.connected(self.session.generation, now := time.monotonic())
        return now

    def _clean_up_after(self, dead: list[Dead]) -> None:
        """Log deaths, and kill the processes that dead workers have left on this machine."""
        for worker in dead:
            _log.error(
                "Dead worker detected: %s (%s on %s, pid %d): %s; it had %s",
                short_id(worker.id), worker.name, worker.hostname, worker.pid, worker.why,
                counted(worker.running, "job"), extra={"worker": worker.id},
            )  # fmt: skip
        if any(worker.hostname == socket.gethostname() for worker in dead):
            # Their zygotes may be dead too, and children still run. Processes of living workers are left alone: each
            # process has a variable that names its supervisor.
            linux.kill_orphans(SUPERVISOR)
            cgroups.remove_orphans()

    async def _end_attempts(self, statement: Callable[..., Statement[list[Lost]]], why: str) -> None:
        after = 0
        while lost := await self.session.run(statement(after=after)):  # A batch at a time.
            after = max(job.token for job in lost)
            ended = [job for job in lost if job.state is not None]
            self.attempts_ended += len(ended)
            for job in ended:
                about = {"job_id": job.id, "task": job.task, "worker": job.worker, "state": job.state}
                held = "job %s, held by %s: %s; it is %s"
                _log.error(held, short_id(job.id), job.worker_name, why, job.state, extra=about)
            if self.telemetry is not None:
                for run in await self.session.run(store.lost_runs([job.token for job in ended])):
                    self.telemetry.lost(run)

    # Every `sweep_s`: everything else

    async def sweep_once(self) -> None:
        await self.sweep()
        await asyncio.sleep(self._config.sweep_s)

    async def sweep(self, *, anyway: bool = False) -> None:
        """Declare silent workers dead, end lost attempts, quarantine killers, prune.

        Lost attempts must end on time, so every reaper does that. For the rest, a reaper that finds another one
        sweeping skips this sweep, but not two in a row: the other one may hang.
        `anyway`: sweep even if another reaper has the lock; a one-shot run cannot wait for it.
        """
        await self._compare_clocks()
        await self._end_silent_and_expired()
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
            await self._prune()
        finally:
            if locked:
                with contextlib.suppress(psycopg.Error):  # A broken connection has released it.
                    await self.session.run(store.unlock(_LOCK))

    async def _end_silent_and_expired(self) -> None:
        """While the server was away, no heartbeat could arrive and no lease could be renewed. Workers that are alive
        release what they gave up. A reaper that has just started did not see the server come back."""
        time_to_renew_s = OTHERS_RECONNECT_S + self._config.renew_s
        if await self._trusts_clocks():
            silent = store.give_up_silent(by=self._database_time(), reconnected_s=self._connected_s())
            self._clean_up_after(await self.session.run(silent))
        await self._end_attempts(store.reap, "its worker died")
        if await self._trusts_clocks() and self._connected_s() > time_to_renew_s:
            expire = functools.partial(store.expire, by=self._database_time(), young_s=time_to_renew_s)
            await self._end_attempts(expire, "its lease expired")

    def _connected_s(self) -> float:
        """For how long the database was not away, as far as this reaper knows."""
        return self._note_connection() - self._absences.reconnected_at

    async def _prune(self) -> None:
        run, keep_s = self.session.run, self._config.keep_s
        for state in keep_s:
            await self._prune_finished(state, keep_s[state])
        await run(store.prune_batches(keep_s=max(keep_s.values())))
        await run(store.prune_schedules(keep_s=KEEP_SCHEDULES_S))
        gone, more = 1, True
        while gone and more:  # Jobs that another transaction has locked wait for the next sweep.
            gone, more = await run(store.prune_expired())
        await run(store.prune_awaited())
        await run(store.prune_watched())
        await run(store.prune_crashes(keep_s=self._config.keep_failed_s))
        await run(store.prune_workers(keep_s=KEEP_WORKERS_S))
        await run(store.prune_audit())
        if (now := time.monotonic()) - self._forgot_at > LOOK_AGAIN_S:  # It may read all jobs.
            self._forgot_at = now
            await run(store.prune_unused(keep_s=KEEP_UNUSED_S))

    async def _prune_finished(self, state: State, keep_s: float) -> None:
        """Jobs of some tasks are kept for longer than others. They are passed over once, and looked at again an hour
        later, as are jobs that another transaction has locked."""
        now = time.monotonic()
        if now - self._marked_at > LOOK_AGAIN_S:
            self._marks, self._marked_at = {}, now
        more = True
        while more:
            after = self._marks.get(state)
            _, more, mark = await self.session.run(store.prune_finished(state, keep_s=keep_s, after=after))
            if mark is not None:
                self._marks[state] = mark

    # For both: whether leases and heartbeats are as old as they look

    def _database_time(self) -> float | None:
        """The database's time by this process' clock: a jump after the last comparison is not in it."""
        return None if self.clock_offset_s is None else time.monotonic() + self.clock_offset_s

    async def _trusts_clocks(self) -> bool:
        """If this process stood still, all workers may have, and the database with them."""
        stood_s = running_time.behind_s() - self._behind_s
        self._behind_s += stood_s
        if stood_s > CLOCK_JUMP_S:
            await self._distrust_clocks(f"this process stood still for {stood_s:.0f} s")
        return time.monotonic() >= self._clocks_distrusted_until

    async def _compare_clocks(self) -> None:
        """Notice a jump of the database's clock."""
        before = time.monotonic()
        offset_s = await self.session.run(store.clock()) - before
        if time.monotonic() - before > LATE_ANSWER_S:
            return  # The answer does not say when in between the database read its clock.
        jumped_s = 0.0 if self.clock_offset_s is None else offset_s - self.clock_offset_s
        self.clock_offset_s = offset_s
        if abs(jumped_s) > CLOCK_JUMP_S:
            await self._distrust_clocks(f"the database's clock jumped by {jumped_s:.0f} s against this machine's")

    async def _distrust_clocks(self, why: str) -> None:
        """Give every worker the time to renew its leases and to send a heartbeat."""
        slowest_s = await self.session.run(store.slowest(max(self._config.renew_s, self._config.heartbeat_s)))
        # One worker with a heartbeat an hour must not suspend the leases of all others. It is judged by its own dead_s
        # and leases, which are longer than its intervals: only a jump by more than those makes it look dead too early.
        wait_s = 2 * min(slowest_s, MAX_SLOWEST_S)
        self._clocks_distrusted_until = time.monotonic() + wait_s
        _log.error("%s: for %g s no lease expires and no worker is declared dead for its heartbeat", why, wait_s)
