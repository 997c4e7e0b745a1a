"""The services of a worker: everything that runs beside its children, put together once the database is known."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping

import psycopg

from outlive import db, store
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.humanize import counted
from outlive.metrics.database import DatabaseMetrics
from outlive.metrics.tallies import Tallies
from outlive.model import Claimed, Ended
from outlive.protocol import Call, Progress, Ready
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.attempts import job_calls
from outlive.worker.attempts.job_calls import JobCalls
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.attempts.renewal import Renewal, TakingBack
from outlive.worker.attempts.requests import Requests
from outlive.worker.attempts.waits import Waits
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.claim_loop import ClaimLoop
from outlive.worker.ending import outbox as ends
from outlive.worker.ending.outbox import Outbox
from outlive.worker.ending.stopping import say_goodbye
from outlive.worker.fleet.leftovers import TICKING_LOOK_S, Leftovers
from outlive.worker.fleet.liveness import Heartbeat, Liveness
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.fleet.registration import Identity, Registration
from outlive.worker.fleet.schedules import Schedules
from outlive.worker.fleet.seat import RunOnce, Seat
from outlive.worker.limits.watch import Watch
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.child_reader import STEPS
from outlive.worker.processes.children import Child
from outlive.worker.processes.slots import Slots
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.reporting.end_lines import EndLines
from outlive.worker.reporting.telemetry import Telemetry
from outlive.worker.session import IDLE_S, Session, SessionPool, Silence
from outlive.worker.wakeup import REQUESTS, Wakeup

ASK_S = 0.5
"""Within which time a worker asks what an operator wants, by chance: all workers of a fleet hear of it at once."""

ALWAYS = 3
"""The connections that are not of the pool: for claims, for life, and for what watchers do."""


class Services:
    def __init__(
        self,
        me: Identity,
        config: Config,
        url: str,
        zygotes: Zygotes,
        alerts: Alerts,
        sentry: Mapping[str, str],
        *,
        on_declared_dead: Callable[[], None],
        on_drain: Callable[[], None],
        on_reload: Callable[[], None],
        bounds: Bounds | None = None,
    ) -> None:
        self.me, self.config, self.alerts = me, config, alerts
        hot = self._hot = Session(url, db.CLAIMS)
        self.liveness = Liveness(me.id, config.session_url or url, self._notified)
        live = self.liveness.session
        session = Session(url)
        pool = SessionPool(url, config.connections - ALWAYS)
        (asked,), (slow,) = pool.share(db.CALLS), pool.share(db.COMPLETIONS)
        steps, firing, scraped = pool.share(db.CALLS, db.FIRINGS, db.METRICS)
        wake = self.wake = Wakeup()
        leases = self.leases = Leases(lease_s=config.lease_s, renew_s=config.renew_s)
        outbox = self.outbox = Outbox(me.id, live, slow, leases, wake)
        self.progress = ProgressWriter(me.id, steps, outbox)
        self.end_lines = EndLines(me.id, live)
        self.reaper = Reaper(session, config, alerts, me.id)
        self.leftovers = Leftovers(session, wake, TICKING_LOOK_S)
        self.telemetry = self.reaper.telemetry = Telemetry(config, me.name, sentry)
        self.tallies = Tallies(lambda: self.reaper.clocks.offset_s) if config.metrics_listen else None
        self.schedules = Schedules(session, firing)
        self.registration = Registration(me, zygotes.target, config, session, live, self.schedules)
        slots = self.slots = Slots(config, me.slots, zygotes, leases, self)
        self.heartbeat = Heartbeat(
            me.id, live, config.heartbeat_s, slots, on_declared_dead=on_declared_dead, on_drain=on_drain,
            on_reload=on_reload, on_set=self._set,
        )  # fmt: skip
        self.seat = Seat(me.id, hot, self.reaper, slots=slots, wake=wake, on_declared_dead=on_declared_dead)
        self.waits = Waits(me.id, config, live, slots=slots, progress=self.progress, wake=wake)
        self.claims = ClaimLoop(
            me.id, hot, live, slots=slots, outbox=outbox, waits=self.waits, wake=wake, tallies=self.tallies,
            bounds=bounds or Bounds(),
        )  # fmt: skip
        self.calls = JobCalls(asked, self.waits, self.progress, leases)
        self.watch = Watch(slots)
        self.taking_back = TakingBack(me.id, live, leases)
        self.renewal = Renewal(me.id, live, slots=slots, outbox=outbox, progress=self.progress)
        self.requests = Requests(me.id, live, slots=slots, watch=self.watch, wake=wake)
        self.metrics = DatabaseMetrics(scraped.run, lambda: db.named(url))
        self.sessions = (hot, live, session, *pool.sessions)
        self.silence = Silence(self.sessions)

    def loops(self) -> list[tuple[str, RunOnce]]:
        watching = self.seat.only_watching
        return [
            ("claim", self.claims.run_once),
            ("watch", self.watch.run_once),
            ("renew", self.renewal.run_once),
            ("take back", self.taking_back.run_once),
            ("heartbeat", self.heartbeat.run_once),
            ("liveness", self.liveness.run_once),
            ("silence", self.silence.run_once),
            ("tick", self.seat.run_once),
            ("reap", watching(self.reaper.check_once)),
            ("follow", watching(self.leftovers.run_once)),
            ("sweep", watching(self.reaper.sweep_once)),
            ("schedules", watching(self.schedules.run_once)),
            ("announce", self.reaper.announcements.run_once),
            ("suspects", self.claims.suspects.run_once),
            ("cancel", self.requests.cancel_once),
            ("end line", self.end_lines.run_once),
            ("followed", self.requests.write_output_once),
            ("begun", self.renewal.mark_begun_once),
            *[("job call", self.calls.run_once)] * job_calls.AT_ONCE,
            *[("blocked call", self.calls.run_blocked_once)] * job_calls.BLOCKED_AT_ONCE,
            *[("slow end", self.outbox.slow.run_once)] * ends.AT_ONCE,
            ("late end", self.outbox.slow.run_late_once),
            ("progress", self.progress.run_once),
            ("steps", self.progress.run_steps_once),
            ("locked steps", self.progress.run_locked_once),
            ("parked", self.waits.run_once),
            ("completion", self.outbox.completions.run_once),
            ("registration", self.registration.run_once),
            ("idle", self._close_idle_once),
        ]

    async def _close_idle_once(self) -> None:
        """Close the connections that are idle, but not the first two: a worker that has nothing to do needs these."""
        await asyncio.sleep(IDLE_S / 2)
        for session in self.sessions[2:]:
            await session.close_if_idle()

    def _notified(self, payload: str) -> None:
        if payload in REQUESTS:
            asyncio.get_running_loop().call_later(random.uniform(0, ASK_S), self.heartbeat.hurry)
        else:
            self.wake.notify(payload)

    def _set(self, slots: int, queues: tuple[str, ...] | None) -> None:
        """The slots and the queues that this worker is to have. Jobs that run, or were claimed, go on."""
        if (slots, queues) == (self.slots.size, self.slots.queues):
            return
        served = "all queues" if queues is None else f"the queues {', '.join(queues)}"
        has = f"{counted(slots, 'slot')} and serves {served}"
        log.info("Worker %s has %s now, because an operator asked for it", self.me.id, has)
        self.slots.queues = queues
        self.claims.lanes.serve(queues)
        self.slots.resize(slots)
        self.wake.notify()

    # What the slots report about attempts. They call no other methods: a test may give them an object that has these.

    def starting(self, job: Claimed) -> tuple[str, str] | None:
        return self.telemetry.starting(job)

    def traced(self, spans: bytes, *, to_sentry: bool) -> None:
        self.telemetry.traced(spans, to_sentry=to_sentry)

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None:
        self.end_lines.add(job, end)
        if self.tallies is not None:
            self.tallies.ended(job, end)
        if not self.leases.disowned(end.token):  # Otherwise its reaper does it.
            self.telemetry.ended(job, end)
        self.outbox.sources.note(job.source, end)
        if completing:
            self.outbox.completions.expect(end)
        elif not self.progress.hold(end):
            self.outbox.put(end)

    def suspended(self, one: Assignment) -> None:
        self.leases.drop(one.job.token)
        took_s = time.monotonic() - one.started
        self.telemetry.ended(one.job, Ended(one.job.token, Outcome.RELEASED, took_s=took_s))

    def called(self, child: Child, call: Call) -> None:
        if call.verb not in STEPS:
            self.calls.put(child, call)
            return
        if one := child.find(call.token):
            one.kept = None  # What came with it is out of date: if it begins again, its process fetches all.
        self.progress.keep(child, call)

    def owes_answer(self, child: Child, token: int) -> bool:
        """Whether this attempt has asked for something and has no answer yet."""
        return self.calls.asked(child, token) or self.progress.step_waits(token)

    def secret_of(self, token: int) -> str:
        return self.me.secret_of(token)

    def progressed(self, progress: Progress) -> None:
        self.progress.note(progress)

    def pending_bytes(self) -> int:
        """How much that jobs have sent is in memory and not written yet."""
        ends = (*self.outbox.unwritten, *self.progress.held_ends, *self.outbox.completions.pending)
        parts = (part for end in ends for part in (end.result, end.records, end.spawns))
        written_later = sum(len(part) for part in parts if part is not None)
        return written_later + self.calls.pending_bytes + self.progress.pending_bytes

    def app_imported(self, served: Collection[str], ready: Ready) -> None:
        self.registration.app_imported(served, ready)
        self.wake.notify()

    def trouble_changed(self) -> None:
        self.heartbeat.hurry()

    def slot_freed(self) -> None:
        self.wake.set()

    # The life of the worker

    async def register(self) -> None:
        """Register, and hold the liveness lock before the first claim: the first job may be the one that kills."""
        if self.config.session_url:
            await self._refuse_another_database()
        await self.registration.register_worker()
        await self.liveness.show()

    async def _refuse_another_database(self) -> None:
        """The life of a worker must show where its jobs are."""
        there = Session(self.liveness.session.url)
        try:
            if await there.run(store.place()) != await self._hot.run(store.place()):
                named = db.named(there.url), db.named(self._hot.url)
                raise ConfigError("session_url ({}) reaches another database than database_url ({})".format(*named))
        finally:
            await there.close()

    @property
    def running(self) -> str:
        """How many jobs run, in words, and in how many slots if these are fewer."""
        jobs, busy = len(self.slots.running), len(self.slots.busy)
        slots = f" in {counted(busy, 'slot')}" if busy < jobs else ""
        return counted(jobs, "job is running", "jobs are running") + slots

    def drain(self) -> None:
        """Claim nothing more, and let jobs end."""
        self.slots.close()
        self.heartbeat.hurry()

    def stop_jobs(self) -> None:
        """Claim nothing more, and tell jobs to stop."""
        self.slots.stop_jobs()
        self.heartbeat.hurry()
        self.wake.set()

    def has_work_left(self) -> bool:
        """Whether jobs run, ends are being written or held up, or children that have run jobs have yet to exit: these
        close what their jobs share, send spans, and run exit functions."""
        at_work = bool(self.slots.busy) or self.outbox.slow.under_way or self.progress.held_up
        return at_work or self.slots.leaving()

    @property
    def answers(self) -> int:
        """Grows while the database answers."""
        return sum(session.round_trips.total() for session in self.sessions)

    async def say_goodbye(self, left: list[Ended]) -> None:
        await say_goodbye(self.me.id, self._hot, left, self.outbox, self.progress)
        with contextlib.suppress(psycopg.Error):  # All is written, and these lines can do without an answer.
            await self.end_lines.ask(self._hot)

    def hang_up(self) -> None:
        """Cut the connections under statements that get no answer. The one that shows this worker's life stays: others
        must not declare it dead before it has said goodbye."""
        for session in self.sessions:
            if session is not self.liveness.session:
                session.hang_up()

    async def close(self) -> None:
        self.end_lines.flush()
        await self.liveness.close()
        await self.metrics.close()
        for session in self.sessions:
            await session.close()
        await self.telemetry.close()
