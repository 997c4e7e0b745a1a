"""The supervisor: one process that claims, spawns, watches and reports, and imports none of the user's code.

Everything that runs for ever is a small service under one task group; a service that fails is started again after
a pause and says so. Signals only set what the loop looks at.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from uuid import UUID, uuid4

import psycopg

from outlive import db
from outlive.config import Config
from outlive.errors import DatabaseUnreachable
from outlive.model import Claimed, Ended
from outlive.protocol import Call, Progress
from outlive.states import Outcome
from outlive.worker import bringing, calls
from outlive.worker.alerts import Alerts
from outlive.worker.children import Assignment, Child
from outlive.worker.crew import Crew
from outlive.worker.line import Line, Lines
from outlive.worker.liveness import Liveness
from outlive.worker.loops import RETRY_S, RETRY_SOON_S, forever
from outlive.worker.reaper import Reaper
from outlive.worker.service import Service
from outlive.worker.suspects import Suspects
from outlive.worker.turns import Turns
from outlive.worker.watch import Watch

TERM_BEFORE_END_S = 5.0
NOTICING = ("liveness", "look")
"""The services by which workers know that they live."""
GOODBYE_S = 2.0
"""How long a database that does not answer may delay the end, once for what is under way and once for the goodbye."""

_log = logging.getLogger("outlive.worker")


def work(target: str, config: Config, url: Callable[[str | None], str]) -> int:
    """Be a worker until told to stop. One that was given up by the others begins anew, under a new id."""
    formerly: UUID | None = None
    while True:
        supervisor = Supervisor(target, config, url, formerly)
        try:
            code = _run(supervisor)
        except DatabaseUnreachable as error:
            if formerly is None:
                raise
            _log.error("%s; trying again in %g s", error, RETRY_S[-1])
            time.sleep(RETRY_S[-1])
            continue
        if supervisor.stop_asked or not supervisor.reaper.given_up:
            return code
        formerly = supervisor.id


def _run(supervisor: Supervisor) -> int:
    try:
        return asyncio.run(supervisor.run())
    finally:  # The loop has put back the default, which kills; a worker that begins anew imports the app in any case.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Supervisor:
    def __init__(
        self, target: str, config: Config, url: Callable[[str | None], str], formerly: UUID | None = None
    ) -> None:
        self.id: UUID = uuid4()
        self.secret = uuid4()
        """What its attempts' secrets are derived from. No job knows it."""
        self.formerly = formerly
        """Who it was when it was given up."""
        self.config, self.url = config, url
        self.name = config.name or f"{socket.gethostname()}-{os.getpid()}"
        self.slots = config.slots or os.cpu_count() or 1
        self.crew = Crew(target, self.id, config, self.slots, self)
        self.alerts = Alerts()
        self.crew.zygotes.spare = self.alerts.processes
        self.stop_asked = 0
        self._stop_by = 0.0
        self.stopping = asyncio.Event()
        self._started = False
        self._tasks: list[asyncio.Task[None]] = []
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False

    async def run(self) -> int:
        """Work until told to stop. The zygote is there before any connection is."""
        self._listen_to_signals()
        self.crew.zygotes.start()
        try:
            starting = asyncio.create_task(self._start())
            stopping = asyncio.create_task(self.stopping.wait())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self._work()
                if not self.reaper.given_up:
                    await self._drain()
            else:
                starting.cancel()
        finally:
            await self._finish()
        return 0

    async def _start(self) -> None:
        ready = await self.crew.zygotes.nursery.ready()
        self._app_url = ready.database_url
        url = await asyncio.to_thread(self.url, self._app_url)
        self.turns = Turns(self.id, self.config, url)
        self.service = Service(self, url)
        self.reaper = Reaper(self.service.line, self.config, self.alerts, self.id)
        self.liveness = Liveness(self.id, url, self.turns.notify)
        self.suspects = Suspects(self.id, self.crew, self.turns, self.service.line)
        self.watch = Watch(self.crew, self.turns)
        self.crew.zygotes.settle_in(ready)
        await self._register()
        self._started = True
        if self._reload_again:
            self._reload()
        _log.info("Worker %s started: %s, %d slots, %d tasks", self.id, self.name, self.slots, len(self.crew.tasks))

    async def _register(self) -> None:
        """The database was there a moment ago: one that breaks off now is asked again, and only then given up.

        Others see that this worker lives before it claims anything: its first job may be the one that kills it.
        """
        for pause_s in RETRY_S:
            try:
                await self.service.register()
                await self.liveness.show()
                return
            except psycopg.OperationalError as error:
                _log.warning("register: %s; trying again in %g s", str(error).strip(), pause_s)
                await asyncio.sleep(pause_s)
        with db.translated_errors():
            await self.service.register()
            await self.liveness.show()

    async def _work(self) -> None:
        """All services, until somebody asks to stop; then those that draining needs go on."""
        self._tasks = [
            asyncio.create_task(forever(name, run_once, RETRY_SOON_S if name in NOTICING else RETRY_S))
            for name, run_once in (
                ("turn", lambda: self.turns.run_once(self.crew)),
                ("watch", self.watch.run_once),
                ("renew", self.service.renew_once),
                ("heartbeat", self.service.heartbeat_once),
                ("liveness", self.liveness.run_once),
                ("look", self._look_once),
                ("sweep", self.reaper.sweep_once),
                ("suspects", self.suspects.run_once),
                ("cancel", self.service.cancel_once),
                ("begun", self.service.begun_once),
                *[("serve", self.service.calls.serve_once)] * calls.LINES,
                *[("bring", self.turns.bringing.run_once)] * bringing.LINES,
                ("progress", self.service.progress_once),
                ("settle", self.service.settle_once),
            )
        ]
        await self.stopping.wait()

    async def _look_once(self) -> None:
        await self.reaper.look_once()
        if self.reaper.given_up:
            _log.error("Worker %s was given up by others: it ends its jobs, and begins anew under a new id", self.id)
            self.stopping.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _ask_to_stop(self) -> None:
        self.stop_asked += 1
        self._stop_by = time.monotonic() + self.config.grace_s
        self.stopping.set()
        if hasattr(self, "service"):
            self.service.changed.set()  # The database hears of it first: a kill may follow.

    def _reload(self) -> None:
        """One that is asked for while the app is imported for the first time waits until this worker has started."""
        self._reload_again = True
        if self._started and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.get_running_loop().create_task(self._reload_all())

    async def _reload_all(self) -> None:
        """One after the other: the code may have changed again while it was imported."""
        while self._reload_again and not self.stopping.is_set():
            self._reload_again = False
            try:
                await self.crew.zygotes.reload()
            except Exception:
                _log.exception("the app was not imported anew")
            facts = self.crew.zygotes.nursery.facts
            if facts and facts.database_url != self._app_url:
                _log.error("the app names another database than before: restart this worker, it works on the old one")

    async def _drain(self) -> None:
        """Claim nothing more, tell jobs, let them finish; near the end of the grace SIGTERM, at its end SIGKILL."""
        _log.info("Worker %s stops: %d jobs are running", self.id, len(self.crew.busy))
        self.turns.closing = True
        self.crew.tell_to_stop()
        self.service.changed.set()
        self.turns.wake.set()
        started = time.monotonic()
        terminated = False
        while self.crew.busy or self.turns.bringing.under_way:
            waited_s = time.monotonic() - started
            hurried = self.stop_asked > 1
            if not terminated and (hurried or waited_s > self.config.grace_s - TERM_BEFORE_END_S):
                terminated, started = True, started if not hurried else time.monotonic() - self.config.grace_s + 5
                for child in self.crew.busy:
                    child.signal(signal.SIGTERM)
            if waited_s > self.config.grace_s:
                break
            await asyncio.sleep(0.02)

    async def _finish(self) -> None:
        """Give back what is left, say goodbye, leave no process. A database that does not answer delays nothing."""
        left = self.crew.end()
        for task in self._tasks:
            task.cancel()
        await self.crew.zygotes.gone()
        if not hasattr(self, "service"):
            return
        await self._at_most(GOODBYE_S, self._tasks)
        if not await self._say_goodbye(left):
            _log.error("the database does not answer: what is not reported comes back when its lease ends")
        await self.alerts.finish(GOODBYE_S)
        for connected in self._connected:
            with contextlib.suppress(Exception):
                await connected.close()
        _log.info("Worker %s stopped", self.id)

    async def _say_goodbye(self, left: list[Assignment]) -> bool:
        """Once to a server that is silent or if hurried, and until the grace is over to one that refuses: it starts."""
        ends = [Ended(one.job.token, Outcome.RELEASED, error="its worker stopped") for one in left]
        while True:
            goodbye = asyncio.create_task(self.service.say_goodbye(ends))
            await self._at_most(GOODBYE_S, [goodbye])
            if goodbye.cancelled() or not goodbye.done():
                return False
            if goodbye.exception() is None:
                return True
            if self.stop_asked != 1 or time.monotonic() > self._stop_by:
                return False
            await asyncio.sleep(RETRY_S[0])

    @property
    def _connected(self) -> tuple[Turns | Line | Lines | Liveness, ...]:
        return self.turns, self.turns.bringing.lines, self.service.line, self.service.calls.lines, self.liveness

    async def _at_most(self, seconds: float, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for tasks; those that take longer wait for a server that is silent, and their connections are cut."""
        _, late = await asyncio.wait(tasks, timeout=seconds) if tasks else (set(), set())
        if late:
            for connected in self._connected:
                connected.hang_up()
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=0.5)

    # What the crew reports

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None:
        match end.outcome:
            case Outcome.SUCCEEDED:
                _log.info("Job %s completed successfully", job.id)
            case Outcome.FAILED | Outcome.CRASHED | Outcome.OUT_OF_MEMORY:
                number = getattr(signal, end.signal or "", None)
                code = -number if number is not None else 1 if end.exit_code is None else end.exit_code
                _log.warning("Job %s failed with code %d: %s", job.id, code, end.error)
            case _:
                _log.info("Job %s %s: %s", job.id, end.outcome, end.error)
        self.turns.hear(end, job.source)
        if completing:
            self.service.unsettled.append(end)
        elif not self.service.end_after_progress(end):
            self.turns.end(end)

    def called(self, child: Child, call: Call) -> None:
        self.service.calls.put(child, call)

    def secret_of(self, token: int) -> str:
        """As the database derives it: outlive.attempt_secret."""
        return hashlib.sha256(f"{self.secret}{token}".encode()).hexdigest()[:32]

    def progressed(self, progress: Progress) -> None:
        self.service.hear_progress(progress)

    def burden_bytes(self) -> int:
        """How much of what jobs have said is in memory and not written yet."""
        ends = (*self.turns.unreported, *self.service.last_words, *self.service.unsettled)
        parts = (part for end in ends for part in (end.result, end.records, end.spawns))
        return sum(len(part) for part in parts if part is not None) + self.service.burden_bytes()

    def renewed_app(self) -> None:
        self.service.app_changed = True
        self.turns.notify()

    def troubled(self) -> None:
        self.service.changed.set()

    def free(self) -> None:
        self.turns.wake.set()
