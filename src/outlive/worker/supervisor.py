"""The supervisor: the process of a worker that claims, forks, watches and reports. It imports none of the user's code.

`Supervisor.run` is its life:
1. it starts the zygote, which imports the app; then it connects to the database and registers;
2. it runs its services, each a `run_once()` in a loop of its own (services.py). A SIGHUP or an operator reloads it;
3. SIGTERM closes the slots at once. Jobs may end within the grace, all processes are killed, and the worker says
   goodbye (ending/stopping.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from enum import Enum
from uuid import UUID, uuid4

import psycopg

from outlive import db
from outlive.config import Config, unprefixed
from outlive.errors import DatabaseUnreachable
from outlive.humanize import counted
from outlive.worker import log
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.ending.stopping import Stop
from outlive.worker.fleet.registration import Identity
from outlive.worker.loops import RETRY_S, RETRY_SOON_S, forever
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.reporting.monitoring import VARIABLES, Systemd, WorkerVitals, monitored
from outlive.worker.services import Services
from outlive.worker.signals import Signals

IDLE_CHECK_S = 0.1
ADDRESSES = ("OUTLIVE_DATABASE_URL", "OUTLIVE_SESSION_URL")
URGENT = ("claim", "liveness", "tick", "reap")
"""The services that begin jobs, and by which workers notice each other's death: they retry sooner than others."""

Configure = Callable[[Mapping[str, object]], Config]
"""Makes the configuration with the settings that the app has in code."""


class Ending(Enum):
    """Why a supervisor ends."""

    STOPPED = "a signal or an operator has stopped it"
    DECLARED_DEAD = "others have declared it dead: what it has lost is taken back under its new id"
    STALLED = "others have declared it dead, and it was a job that stopped its process for so long"


def work(target: str, configure: Configure, url: Callable[[Config], str], bounds: Bounds) -> int:
    """Be a worker until a signal stops it, or its bounds are reached.

    A worker that others have declared dead starts over, under a new id.
    """
    formerly: UUID | None = None
    signals = Signals()  # First: threads that are started before would receive them.
    while True:
        supervisor = Supervisor(target, configure, url, signals, bounds, formerly)
        try:
            ending = _run(supervisor)
        except DatabaseUnreachable as error:
            if formerly is None:
                raise
            log.error("%s; trying again in %g s", error, RETRY_S[-1])
            time.sleep(RETRY_S[-1])
            continue
        if ending is Ending.STOPPED:
            return 0
        formerly = supervisor.id if ending is Ending.DECLARED_DEAD else None


def _run(supervisor: Supervisor) -> Ending:
    try:
        return asyncio.run(supervisor.run())
    finally:  # The loop restores the default action, which kills. A worker that starts over imports the app anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Supervisor:
    def __init__(
        self,
        target: str,
        configure: Configure,
        url: Callable[[Config], str],
        signals: Signals,
        bounds: Bounds,
        formerly: UUID | None,
    ) -> None:
        self.id, self._formerly = uuid4(), formerly
        self._configure, self._url, self._signals, self._bounds = configure, url, signals, bounds
        config = self._command = configure({})
        """The settings of the command. Those of the app come with it: `_start` builds the services with both."""
        self._app_settings: Mapping[str, object] = {}
        self._alerts = Alerts()
        self._zygotes = Zygotes(
            target,
            self.id,
            hidden=VARIABLES if config.jobs_see_database_url else (*VARIABLES, *ADDRESSES),
            spare=self._alerts.processes,
            log_level=config.job_log_level,
        )
        self._vitals = WorkerVitals(self._identity(config))
        self._systemd = Systemd(self._vitals)
        self._services: Services | None = None
        self._declared_dead = False
        """Other workers have declared this one dead."""
        self._stalled_by_a_job = False
        """A job has stopped this process, and continued it."""
        self._stop = Stop()
        self._stopping, self._reload, self._drain = asyncio.Event(), asyncio.Event(), asyncio.Event()
        bounds.on_reached = self._drain.set
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Ending:
        """Start, work until a signal, an operator or another worker ends it, and end."""
        self._signals.listen(self._obey)
        async with monitored(self._command, self._vitals, self._systemd):
            self._zygotes.start()
            try:
                if services := await self._start_unless_stopped():
                    self._run_services(services)
                    await self._stopping.wait()
                    if self._declared_dead:  # Its jobs get no time: others have them.
                        log.error("Worker %s was declared dead by others: it ends its jobs and starts over", self.id)
                    else:
                        await self._stop.let_jobs_end(services)
            finally:
                await self._stop.finish(self._zygotes, self._services, self._tasks)
        if self._stop.requests or not self._declared_dead:
            return Ending.STOPPED
        return Ending.STALLED if self._stalled_by_a_job else Ending.DECLARED_DEAD

    # Start

    async def _start_unless_stopped(self) -> Services | None:
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        return None

    async def _start(self) -> Services:
        """Import the app, add its settings to the others, then connect to the database that they name."""
        app = await self._zygotes.current.ready()
        self._app_settings, config = app.settings, self._configure(app.settings)
        url = await asyncio.to_thread(self._url, config)
        services = self._services = self._vitals.services = Services(
            self._identity(config), config, url, self._zygotes, self._alerts, app.sentry,
            on_declared_dead=self._was_declared_dead, on_drain=self._drain.set, on_reload=self._reload.set,
            bounds=self._bounds,
        )  # fmt: skip
        self._zygotes.open(app, services.slots)
        await self._register(services)
        self._announce(services, tasks=len(services.slots.tasks))
        return services

    def _identity(self, config: Config) -> Identity:
        """This worker, with the name and the slots that the settings give it."""
        name = config.name or f"{socket.gethostname()}-{os.getpid()}"
        return Identity(name, config.slots or os.cpu_count() or 1, self._formerly, self.id)

    def _announce(self, services: Services, *, tasks: int) -> None:
        self._vitals.started = True
        self._systemd.notify("READY=1")
        counts = counted(services.me.slots, "slot"), counted(tasks, "task")
        log.info("Worker %s started: %s, %s, %s", self.id, services.me.name, *counts)
        if not tasks:
            log.warning(
                "the app has no tasks, so this worker runs no job: import the modules with tasks where the app is"
            )
        if others := unprefixed(services.config):
            log.info("variables without the prefix OUTLIVE_ are in force: %s", ", ".join(others))
        groups = self._zygotes.groups
        log.info("memory is limited by %s", f"{groups} and by polling" if groups else "polling: no writable cgroup")

    async def _register(self, services: Services) -> None:
        """The database was there a moment ago: a broken connection or a read-only spell is worth some more tries."""
        with db.translated_errors():
            for pause_s in RETRY_S:
                try:
                    await services.register()
                    return
                except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
                    level = logging.DEBUG if db.lost(error) else logging.WARNING
                    log.log(level, "register: %s; trying again in %g s", db.summary(error), pause_s)
                    await asyncio.sleep(pause_s)
            await services.register()

    # Run

    def _run_services(self, services: Services) -> None:
        """Each service has a loop of its own. All go on while the jobs of a worker that stops end."""
        loops = [("reload", self._reload_once), ("drain", self._drain_once), *services.loops()]
        self._tasks = [
            asyncio.create_task(forever(name, run_once, RETRY_SOON_S if name in URGENT else RETRY_S))
            for name, run_once in loops
        ]

    def _obey(self, number: signal.Signals, sender: int) -> None:
        """A signal has arrived. A job that sends one to its worker would stop one worker after the other."""
        if self._zygotes.sent_by_a_job(number.name, sender):
            if self._services is not None and number is signal.SIGCONT:
                self._stalled_by_a_job = True
                self._services.taking_back.stalled_by_a_job = True  # Losses that follow from that stand.
        elif number is signal.SIGHUP:
            self._reload.set()
        elif number is not signal.SIGCONT:
            self._request_stop()

    async def _drain_once(self) -> None:
        """This worker stops when its jobs have ended, however long they take: an operator or its bounds ask for it."""
        await self._drain.wait()
        self._drain.clear()
        if (services := self._services) is None or self._stopping.is_set():
            return
        why = self._bounds.reached or "an operator asked for it"
        log.info("Worker %s drains, because %s: %s", self.id, why, services.running)
        services.drain()
        while services.slots.busy or services.slots.unplaced:  # noqa: ASYNC110  # It is rare.
            await asyncio.sleep(IDLE_CHECK_S)
        if not self._stopping.is_set():
            self._request_stop()

    async def _reload_once(self) -> None:
        """Import the app again. A SIGHUP or a request that arrives meanwhile reloads it once more: its code may have
        changed while it was imported."""
        await self._reload.wait()
        self._reload.clear()
        if (services := self._services) is None or self._stopping.is_set():
            return
        requested_at = services.heartbeat.reload_requested_at
        try:
            await self._zygotes.reload()
        finally:
            services.heartbeat.answer_reload(requested_at)
        facts = self._zygotes.current.facts
        if facts and facts.settings != self._app_settings:
            log.error(
                "the app's settings have changed: restart this worker, which keeps its database and all else "
                "except the limits of tasks"
            )

    # End

    def _request_stop(self) -> None:
        """A signal or a drain ends this worker. Another signal shortens the grace."""
        self._stop.request((self._services.config if self._services else self._command).grace_s)
        self._stopping.set()
        self._vitals.stopping = True
        self._systemd.notify("STOPPING=1")
        if self._services is not None:  # At once: an end that is read in the same moment is a stop's.
            self._services.stop_jobs()

    def _was_declared_dead(self) -> None:
        self._declared_dead = True
        self._stopping.set()
