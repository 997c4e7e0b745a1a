"""The reaper: it declares workers dead, ends their attempts as lost, and cleans up.

It also lets go on what commits have left waiting, for a slot of a key or for jobs that have ended; quarantines jobs
whose crash limit was lowered; and prunes.

A worker is declared dead:
1. if the lock that it holds while it lives (liveness.py) is missing in two checks, half a second apart, or three
   seconds apart just after the reaper itself has reconnected (absences.py);
2. if ten seconds have passed since a reaper first missed it after a start of the database server;
3. if its last heartbeat is older than `dead_s`. This finds a worker that is frozen, or behind a pooler, where
   a lock proves nothing.
In any case, an attempt is lost when its lease expires, whatever is known about its worker.

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
from uuid import UUID

import psycopg

from outlive import kernel, store
from outlive.config import KEEP_WORKERS_S, Config
from outlive.model import Dead, Lost
from outlive.statement import Statement
from outlive.worker import cgroups
from outlive.worker.absences import CAUTIOUS_MISSING_S, Absences
from outlive.worker.alerts import Alerts
from outlive.worker.announcements import Announcements
from outlive.worker.session import Session
from outlive.worker.telemetry import Telemetry
from outlive.worker.zygote_handle import SIGN

OTHERS_RECONNECT_S = 10.0
"""How long other workers may take to reconnect to a server that was away."""
CLOCK_JUMP_S = 5.0
"""More than an answer may be late, and much less than a lease."""
LATE_ANSWER_S = 1.0
ADMIT_S = 1.0
KEYS_AT_ONCE = 500
"""How many jobs and keys one statement looks at. If there are more, it is repeated at once, but not forever: some may
be locked."""
MANY_KEYS_TURNS = 100
ENDS_AT_ONCE = 100
"""How many notes of ends one statement checks, at most. If there are more, it is repeated at once, as with keys."""
MANY_ENDS_TURNS = 40
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
        self.declared_dead = False
        """Other workers have declared this one dead."""
        self.attempts_ended = 0
        self.telemetry: Telemetry | None = None
        """Reports lost attempts, which their own workers can't report."""
        self._absences = Absences()
        self._generation = 0
        self._reconnected_at = -math.inf
        self.clock_offset_s: float | None = None
        """The database's clock minus this process' monotonic clock."""
        self.checked_at = time.monotonic()
        self._clock_distrusted_until = 0.0
        self._skipped = False
        """The last sweep was left to another reaper."""

    # Every second: dead workers

    async def check_once(self) -> None:
        self.checked_at = time.monotonic()
        await self.check()
        await asyncio.sleep(self._absences.next_check_s)

    async def check(self) -> None:
        """Declare workers dead whose locks are missing, and end the attempts of dead workers."""
        await self._compare_clocks()
        absent = await self.session.run(store.absent(self._own_id))
        now = time.monotonic()
        # The statement may have reconnected: then earlier checks are forgotten before its rows count. Nothing is
        # awaited in between, because other services use the same session.
        self._notice_reconnect(now)
        if None in absent.values():  # A worker that was declared dead finds only itself so, without a key.
            self.hear_own_death()
        others = {worker: key for worker, key in absent.items() if key is not None and worker != self._own_id}
        unseen = [worker for worker, key in others.items() if key == NEVER_LOCKED]
        self._absences.found({worker: key for worker, key in others.items() if key != NEVER_LOCKED}, now)
        proven = self._absences.proven(now) | await self._missed(unseen, now)
        if proven:
            self._bury(await self.session.run(store.declare_dead(proven)), "its session is gone")
        await self._end_attempts(store.reap, "its worker died")  # Also of workers that another reaper declared dead.
        await self._check_late_ends()
        await self.announcements.quarantined()
        await self.announcements.breakers()

    async def _check_late_ends(self) -> None:
        """Release what waits for jobs whose ends other transactions could not see."""
        for _ in range(MANY_ENDS_TURNS):
            if await self.session.run(store.check_late_ends(ENDS_AT_ONCE)) < ENDS_AT_ONCE:
                return

    async def _missed(self, unseen: list[UUID], now: float) -> dict[UUID, int]:
        """The workers among these that have taken no lock in ten seconds since the server started."""
        if not unseen or now < self._clock_distrusted_until:
            return {}
        missed = await self.session.run(store.note_missed(unseen, for_s=NEVER_LOCKED_S))
        had_time = now - self._reconnected_at > CAUTIOUS_MISSING_S
        return dict.fromkeys(missed, NEVER_LOCKED) if had_time else {}

    def hear_own_death(self) -> None:
        self.declared_dead = True
        self._on_declared_dead()

    # Every second: keys

    async def admit_once(self) -> None:
        await self.admit()
        await asyncio.sleep(ADMIT_S)

    async def admit(self) -> None:
        """Admit the jobs whose time has come, and those of keys that commits left: locked ones, or too many."""
        for _ in range(MANY_KEYS_TURNS):
            if await self.session.run(store.admit_due(KEYS_AT_ONCE)) < KEYS_AT_ONCE:
                return

    # Every `sweep_s`: everything else

    async def sweep_once(self) -> None:
        await self.sweep()
        await asyncio.sleep(self._config.sweep_s)

    async def sweep(self, *, anyway: bool = False) -> None:
        """End lost attempts, declare silent workers dead, quarantine killers, prune.

        Lost attempts must end on time, so every reaper does that. For the rest, a reaper that finds another one
        sweeping skips this sweep, but not two in a row: the other one may hang.
        `anyway`: sweep even if another reaper has the lock; a one-shot run cannot wait for it.
        """
        await self._compare_clocks()
        await self._end_lost_attempts()
        pooled = self.session.pooled  # A pooler gives each statement another session: a lock would protect nothing.
        locked = not pooled and await self.session.run(store.try_lock(_LOCK))
        may_skip = not (pooled or anyway or self._skipped)
        self._skipped = may_skip and not locked
        if self._skipped:
            return
        try:
            await self._give_up_silent_workers()
            await self.session.run(store.quarantine_killers())
            await self.announcements.quarantined()
            await self.announcements.crashing_tasks()
            await self._prune()
        finally:
            if locked:
                with contextlib.suppress(psycopg.Error):  # A broken connection has released it.
                    await self.session.run(store.unlock(_LOCK))

    async def _give_up_silent_workers(self) -> None:
        now = time.monotonic()
        self._notice_reconnect(now)
        # While the server was away, no heartbeat could arrive. Half of one more: it may be late.
        time_to_beat_s = OTHERS_RECONNECT_S + 1.5 * self._config.heartbeat_s
        if now < self._clock_distrusted_until or now - self._reconnected_at <= time_to_beat_s:
            return
        dead_s = self._config.dead_s
        silent = store.give_up_silent(by=self._database_time(), stale_s=self._config.stale_s, dead_s=dead_s)
        self._bury(await self.session.run(silent), f"no heartbeat for {dead_s:g} s")
        await self._end_lost_attempts()

    async def _prune(self) -> None:
        keep_s = self._config.keep_s
        for state in keep_s:
            await self._prune_jobs(store.prune_finished(state, keep_s=keep_s[state]))
        await self.session.run(store.prune_batches(keep_s=max(keep_s.values())))
        await self._prune_jobs(store.prune_expired())
        await self.session.run(store.prune_awaited())
        await self.session.run(store.prune_watched())
        await self.session.run(store.prune_crashes(keep_s=self._config.keep_failed_s))
        await self.session.run(store.prune_workers(keep_s=KEEP_WORKERS_S))
        await self.session.run(store.prune_audit())

    async def _prune_jobs(self, statement: Statement[tuple[int, bool]]) -> None:
        """Prune a batch of jobs at a time. Jobs that another transaction has locked wait for the next sweep."""
        gone, more = await self.session.run(statement)
        while gone and more:
            gone, more = await self.session.run(statement)

    # For both

    def _bury(self, dead: list[Dead], why: str) -> None:
        """Announce deaths, and kill the processes that dead workers have left on this machine."""
        self.announcements.dead(dead, why)
        if any(worker.hostname == socket.gethostname() for worker in dead):
            # Their zygotes may be dead too, and children still run. Processes of living workers are left alone: each
            # process has a variable that names its supervisor.
            kernel.kill_orphans(SIGN)
            cgroups.remove_orphans()

    async def _end_lost_attempts(self) -> None:
        await self._end_attempts(store.reap, "its worker died")
        if time.monotonic() >= self._clock_distrusted_until:
            await self._end_attempts(functools.partial(store.expire, by=self._database_time()), "its lease expired")

    async def _end_attempts(self, statement: Callable[..., Statement[list[Lost]]], why: str) -> None:
        after = 0
        while lost := await self.session.run(statement(after=after)):  # A batch at a time.
            after = max(job.token for job in lost)
            for job in lost:
                if job.state is not None:
                    self.attempts_ended += 1
                    _log.error("job %s, held by %s: %s; it is %s", job.id, job.worker_name, why, job.state)
            if self.telemetry is not None:
                tokens = [job.token for job in lost if job.state is not None]
                for run in await self.session.run(store.lost_runs(tokens)):
                    self.telemetry.lost(run)

    def _notice_reconnect(self, now: float) -> None:
        if self._generation == self.session.generation:
            return
        if self._generation:  # The first connection replaces none.
            self._reconnected_at = now
            self._absences.reconnected(now)
        self._generation = self.session.generation

    def _database_time(self) -> float | None:
        """The database's time by this process' clock: a jump after the last comparison is not in it."""
        return None if self.clock_offset_s is None else time.monotonic() + self.clock_offset_s

    async def _compare_clocks(self) -> None:
        """If the database's clock jumps, leases and heartbeats look old: give every worker the time to renew them."""
        before = time.monotonic()
        offset_s = await self.session.run(store.clock()) - before
        if time.monotonic() - before > LATE_ANSWER_S:
            return  # The answer does not say when in between the database read its clock.
        jumped_s = 0.0 if self.clock_offset_s is None else offset_s - self.clock_offset_s
        self.clock_offset_s = offset_s
        if abs(jumped_s) > CLOCK_JUMP_S:
            wait_s = 2 * max(self._config.renew_s, self._config.heartbeat_s)
            self._clock_distrusted_until = before + wait_s
            _log.error(
                "the database's clock jumped by %.0f s against this machine's:"
                " for %g s no lease expires and no worker is declared dead for its heartbeat",
                jumped_s,
                wait_s,
            )
