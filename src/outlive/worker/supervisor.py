"""The supervisor: the process of a worker that claims, forks, watches and reports. It imports none of the user's code.

It starts the zygote, then its services, each a `run_once()` in a loop of its own; it stops them, and writes all ends.
SIGTERM closes the slots at once, and the loops do the rest. SIGHUP starts a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import psycopg

from outlive import db
from outlive.config import Config, unprefixed
from outlive.errors import DatabaseUnreachable
from outlive.humanize import counted
from outlive.model import Ended
from outlive.states import Outcome
from outlive.worker.identity import Identity
from outlive.worker.loops import RETRY_S, RETRY_SOON_S, forever
from outlive.worker.processes.children import Assignment, Child
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.reporting.monitoring import monitored
from outlive.worker.reporting.systemd import VARIABLES, Systemd
from outlive.worker.reporting.vitals import WorkerVitals
from outlive.worker.services import Services
from outlive.worker.signals import Signals

TERM_BEFORE_END_S = 5.0
IDLE_CHECK_S = 0.1
URGENT = ("claim", "liveness", "reap")
"""The services that begin jobs, and by which workers notice each other's death: they retry sooner than others."""
GOODBYE_S = 2.0
"""How long a silent database may delay the end, once for the statements under way and once for the goodbye."""

Configure = Callable[[Mapping[str, object]], Config]
"""Makes the configuration with the settings that the app has in code."""

_log = logging.getLogger("outlive.worker")


def work(target: str, configure: Configure, url: Callable[[Config], str]) -> int:
    """Be a worker until a signal stops it. A worker that others have declared dead starts over, under a new id."""
    formerly: UUID | None = None
    signals = Signals()  # First: threads that are started before would receive them.
    while True:
        supervisor = Supervisor(target, configure, url, signals, formerly)
        try:
            _run(supervisor)
        except DatabaseUnreachable as error:
            if formerly is None:
                raise
            _log.error("%s; trying again in %g s", error, RETRY_S[-1])
            time.sleep(RETRY_S[-1])
            continue
        if supervisor.stop_requests or not supervisor.declared_dead:
            return 0
        formerly = None if supervisor.stalled_by_a_job else supervisor.me.id


def _run(supervisor: Supervisor) -> None:
    try:
        asyncio.run(supervisor.run())
    finally:  # The loop restores the default action, which kills. A worker that starts over imports the app anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _name_and_slots(config: Config) -> tuple[str, int]:
    return config.name or f"{socket.gethostname()}-{os.getpid()}", config.slots or os.cpu_count() or 1


class Supervisor:
    def __init__(
        self, target: str, configure: Configure, url: Callable[[Config], str], signals: Signals, formerly: UUID | None
    ) -> None:
        self._configure, self._url, self._signals = configure, url, signals
        self._app_settings: Mapping[str, object] = {}
        config = self._config = configure(self._app_settings)  # Until the app is imported.
        self.me = Identity(*_name_and_slots(config), formerly)
        self._alerts = Alerts()
        hidden = VARIABLES if config.jobs_see_database_url else (*VARIABLES, "OUTLIVE_DATABASE_URL")
        spare, log_level = self._alerts.processes, config.job_log_level
        self._zygotes = Zygotes(target, self.me.id, self.me.slots, hidden=hidden, spare=spare, log_level=log_level)
        self._vitals = WorkerVitals(self.me)
        self._systemd = Systemd(self._vitals)
        self._services: Services | None = None
        self.stop_requests = 0
        self.declared_dead = False
        """Other workers have declared this one dead."""
        self._stop_by = 0.0
        self._stopping, self._reload, self._drain = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def stalled_by_a_job(self) -> bool:
        return self._services is not None and self._services.taking_back.stalled_by_a_job

    async def run(self) -> None:
        """Work until a signal, an operator or another worker ends it."""
        self._signals.listen(self._obey)
        async with monitored(self._config, self._vitals, self._systemd):
            self._zygotes.start()
            try:
                starting = asyncio.create_task(self._start())
                stopping = asyncio.create_task(self._stopping.wait())
                await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await self._work(starting.result())
                else:
                    starting.cancel()
            finally:
                await self._finish()

    async def _start(self) -> Services:
        """Import the app, add its settings to the others, then connect to the database that they name."""
        ready = await self._zygotes.current.ready()
        self._app_settings = ready.settings
        self._config = self._configure(ready.settings)
        name, slots = _name_and_slots(self._config)
        self.me = self._vitals.me = dataclasses.replace(self.me, name=name, slots=slots)
        self._zygotes.slots = slots
        url = await asyncio.to_thread(self._url, self._config)
        services = self._services = self._vitals.services = Services(
            self.me, self._config, url, self._zygotes, self._alerts, ready.sentry,
            on_declared_dead=self._was_declared_dead, on_drain=self._drain.set,
        )  # fmt: skip
        self._zygotes.open(ready, services.slots)
        await self._register(services)
        self._vitals.started = True
        self._systemd.ready()
        counts = counted(slots, "slot"), counted(len(ready.tasks), "task")
        _log.info("Worker %s started: %s, %s, %s", self.me.id, name, *counts)
        if others := unprefixed(self._config):
            _log.info("variables without the prefix OUTLIVE_ are in force: %s", ", ".join(others))
        groups = self._zygotes.groups
        _log.info("memory is limited by %s", f"{groups} and by polling" if groups else "polling: no writable cgroup")
        return services

    async def _register(self, services: Services) -> None:
        """The database was there a moment ago: a broken connection or a read-only spell is worth some more tries."""
        for pause_s in RETRY_S:
            try:
                await services.register()
                return
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
                level = logging.DEBUG if db.lost(error) else logging.WARNING
                _log.log(level, "register: %s; trying again in %g s", str(error).strip(), pause_s)
                await asyncio.sleep(pause_s)
        with db.translated_errors():
            await services.register()

    async def _work(self, services: Services) -> None:
        """Run all services until this worker must stop. They go on while it stops."""
        loops = [("reload", self._reload_once), ("drain", self._drain_once), *services.loops()]
        self._tasks = [
            asyncio.create_task(forever(name, run_once, RETRY_SOON_S if name in URGENT else RETRY_S))
            for name, run_once in loops
        ]
        await self._stopping.wait()
        if self.declared_dead:
            _log.error("Worker %s was declared dead by others: it ends its jobs and starts over", self.me.id)
        else:
            await self._stop_within_grace(services)

    def _was_declared_dead(self) -> None:
        self.declared_dead = True
        self._stopping.set()

    def _obey(self, number: signal.Signals, sender: int) -> None:
        """A signal has arrived. A job that sends one to its worker would stop one worker after the other."""
        if self._zygotes.sent_by_a_job(number.name, sender):
            if self._services is not None and number is signal.SIGCONT:
                self._services.taking_back.stalled_by_a_job = True
        elif number is signal.SIGHUP:
            self._reload.set()
        elif number is not signal.SIGCONT:
            self._request_stop()

    def _request_stop(self) -> None:
        self.stop_requests += 1
        self._stop_by = time.monotonic() + self._config.grace_s
        self._stopping.set()
        self._vitals.stopping = True
        self._systemd.stopping()
        if self._services is not None:  # At once: an end that is read in the same moment is a stop's.
            self._services.slots.stop_jobs()
            self._services.heartbeat.drain()

    async def _drain_once(self) -> None:
        """An operator wants this worker to stop when its jobs have ended, however long they take."""
        await self._drain.wait()
        self._drain.clear()
        if (services := self._services) is None or self._stopping.is_set():
            return
        slots = services.slots
        _log.info("Worker %s drains, as an operator asked: %s", self.me.id, _running(slots.busy))
        slots.close()
        services.heartbeat.drain()
        while slots.busy or slots.unplaced:  # noqa: ASYNC110  # It is rare.
            await asyncio.sleep(IDLE_CHECK_S)
        if not self._stopping.is_set():
            self._request_stop()

    async def _reload_once(self) -> None:
        """Import the app again. A SIGHUP that arrives meanwhile reloads it once more: its code may have changed
        while it was imported."""
        await self._reload.wait()
        self._reload.clear()
        if self._stopping.is_set():
            return
        try:
            await self._zygotes.reload()
        except Exception:
            _log.exception("the app was not reloaded")
        facts = self._zygotes.current.facts
        if facts and facts.settings != self._app_settings:
            _log.error(
                "the app's settings have changed: restart this worker, which keeps its database and all else "
                "except the limits of tasks"
            )

    async def _stop_within_grace(self, services: Services) -> None:
        """Claim nothing more, tell jobs to stop, let them finish; SIGTERM near the end of the grace, then SIGKILL."""
        slots = services.slots
        sooner = "; another Ctrl-C or SIGTERM stops it within 5 s" if slots.busy else ""
        _log.info("Worker %s stops: %s%s", self.me.id, _running(slots.busy), sooner)
        slots.stop_jobs()
        services.wake.set()
        end_by, terminated = self._stop_by, False
        while (now := time.monotonic()) < end_by:
            under_way = slots.busy or services.outbox.slow.under_way
            if not under_way and not (services.telemetry is not None and slots.leaving()):
                break
            if not terminated and (self.stop_requests > 1 or now > end_by - TERM_BEFORE_END_S):
                terminated, end_by = True, min(end_by, now + TERM_BEFORE_END_S)
                for child in slots.busy:
                    child.signal(signal.SIGTERM)
            await asyncio.sleep(0.02)

    async def _finish(self) -> None:
        """End all processes, and give jobs back. A database that does not answer delays nothing."""
        services = self._services
        left = services.slots.end() if services else []
        self._zygotes.end()
        for task in self._tasks:
            task.cancel()
        await self._zygotes.gone()
        if services is None:
            return
        await self._at_most(GOODBYE_S, self._tasks, services)
        if not await self._say_goodbye(services, left):
            _log.error("the database does not answer: jobs without a reported end return when their leases expire")
        await self._alerts.finish(GOODBYE_S)
        with contextlib.suppress(Exception):
            await services.close()
        _log.info("Worker %s stopped", self.me.id)

    async def _say_goodbye(self, services: Services, left: list[Assignment]) -> bool:
        """Try until the grace is over if the server refuses connections: it restarts. Try once if it is silent."""
        ends = [Ended(one.job.token, Outcome.RELEASED, error="its worker stopped") for one in left]
        while True:
            goodbye, answers = asyncio.create_task(services.say_goodbye(ends)), -1
            while not goodbye.done() and answers != services.answers:
                answers = services.answers
                await asyncio.wait([goodbye], timeout=GOODBYE_S)
            await self._at_most(0.0, [goodbye], services)
            if goodbye.cancelled() or not goodbye.done():
                return False
            if goodbye.exception() is None:
                return True
            if self.stop_requests != 1 or time.monotonic() > self._stop_by:
                return False
            await asyncio.sleep(RETRY_S[0])

    async def _at_most(self, seconds: float, tasks: list[asyncio.Task[None]], services: Services) -> None:
        """Wait for tasks. Tasks that take longer wait for a silent server: cut their connections and cancel them."""
        _, late = await asyncio.wait(tasks, timeout=seconds) if tasks else (set(), set())
        if late:
            services.hang_up()
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=0.5)


def _running(busy: Sequence[Child]) -> str:
    return counted(len(busy), "job is running", "jobs are running")
