"""Alerts: what operators should know at once is logged, and sent to the command that they have set for it, as JSON.

The commands never delay the worker: each has a time limit, few run at once, and alerts beyond a limit are only logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections import Counter
from datetime import UTC
from typing import IO, cast

import msgspec

from outlive import linux, program, store
from outlive.config import ALERTS, Config
from outlive.humanize import short_id, unserved
from outlive.metrics.tallies import bounded
from outlive.worker import log
from outlive.worker.loops import wait
from outlive.worker.session import Session

LIMIT_S, POLL_S, KILLED_S = 30.0, 0.05, 1.0
MAX_AT_ONCE, MAX_WAITING = 4, 200
STDERR_BYTES = 500
"""How much of a command's stderr is logged."""
DEAD_WITHIN_S = 60.0
"""How long after a death its alert is still sent, by a worker that has a command for it."""
MOST_UNSERVED = 20
CRASHING_JOBS, CRASHING_WITHIN_S = 5, 600.0

_log = logging.getLogger("outlive.alerts")


class Alerts:
    def __init__(self) -> None:
        self.processes: set[int] = set()
        """The sweep of orphans must leave these alone."""
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """How many more alerts can be sent now."""
        return max(0, MAX_WAITING - len(self._tasks))

    def send(self, command: str | None, event: str, facts: dict[str, object]) -> None:
        """Run the command, if there is one."""
        if command is None:
            return
        if len(self._tasks) >= MAX_WAITING:
            _log.error("too many alerts wait; this one is dropped: %s %s", event, facts)
            return
        task = asyncio.create_task(self._run(command, msgspec.json.encode({"event": event, **facts}) + b"\n"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, command: str, body: bytes) -> None:
        async with self._places:
            try:
                process, pipe = _start(command, body)
            except OSError as error:
                _log.error("the alert command %r can't be run: %s", command, error)
                return
            self.processes.add(process.pid)
            try:
                async with asyncio.timeout(LIMIT_S):
                    stderr = await _end(process, pipe)
                if process.returncode:
                    last = stderr.decode(errors="replace").strip()
                    _log.error("the alert command %r ended with code %s: %s", command, process.returncode, last)
            except TimeoutError:
                _log.error("the alert command %r did not end within %g s: it is killed", command, LIMIT_S)
            finally:
                linux.kill_group(process.pid)  # Processes that it left behind included.
                with contextlib.suppress(TimeoutError):  # It may run as another user now.
                    async with asyncio.timeout(KILLED_S):
                        await _end(process, pipe)
                self.processes.discard(process.pid)
                pipe.close()

    async def finish(self, seconds: float) -> None:
        """Give running commands a moment, then kill them."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)


def _start(command: str, body: bytes) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A running command, and its stderr."""
    with open(os.memfd_create("outlive-alert"), "w+b") as facts:
        facts.write(body)
        facts.seek(0)
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=facts,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=linux.unblock_signals,
        )
    pipe = cast(IO[bytes], process.stderr)
    os.set_blocking(pipe.fileno(), False)
    return process, pipe


async def _end(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> bytes:
    """Wait until a command has ended, and return the end of its stderr. It is polled: asyncio's subprocesses know their
    pid too late, and wait until every process has closed the inherited stderr."""
    stderr, running = b"", True
    while running:
        running = process.poll() is None
        stderr = (stderr + (pipe.read(65536) or b""))[-STDERR_BYTES:]
        await asyncio.sleep(POLL_S if running else 0)
    return stderr


class Announcements:
    def __init__(self, session: Session, config: Config, alerts: Alerts) -> None:
        self._session, self._config, self._alerts = session, config, alerts
        self.quarantines: Counter[str] = Counter()
        """How many jobs were announced, by task."""
        self.has_command = any(getattr(config, key) for key in ALERTS)
        self.untold = asyncio.Event()
        self._unserved: set[tuple[str, str]] = set()
        """The tasks and queues that no worker served at the last look."""

    async def run_once(self) -> None:
        """Announce what the tick has found, and at times what watchers leave to a worker that has a command for it."""
        await wait(self.untold, self._config.sweep_s)
        if self.untold.is_set():
            self.untold.clear()
            await self.each_second()
        if self.has_command:
            await self.crashing_tasks()

    async def each_second(self) -> None:
        if command := self._config.on_worker_dead:  # The reaper that has declared a worker dead may have no command.
            untold = store.untold_deaths(within_s=DEAD_WITHIN_S, batch=self._alerts.room)
            for worker in await self._session.run(untold):
                self._alerts.send(command, "worker_dead", msgspec.structs.asdict(worker))
        await self.quarantined()
        await self._breakers()

    async def quarantined(self) -> None:
        """Each job once, and not more at a time than the alerts have room for."""
        command = self._config.on_quarantine
        untold = store.untold_killers(batch=self._alerts.room, command=command is not None)
        for killer in await self._session.run(untold):
            about = {"job_id": killer["id"], "task": killer["task"], "worker": killer.pop("worker")}
            log.warning("Job %s is quarantined: %s", short_id(killer["id"]), killer["details"], extra=about)
            self.quarantines[bounded(self.quarantines, killer["task"])] += 1
            self._alerts.send(command, "quarantine", killer)

    async def _breakers(self) -> None:
        """Sources that have just been paused, or work again. The database returns each change once."""
        command = self._config.on_source_paused
        for source in await self._session.run(store.breakers(command=command is not None)):
            if source["paused_until"] is None:
                log.warning("the source %s works again: its breaker is closed", source["name"])
            else:
                until = f"{source['paused_until'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
                paused = "the source %s is paused until %s, after %d failures in a row"
                log.error(paused, source["name"], until, source["failure_streak"])
            self._alerts.send(command, "source_paused", source)

    async def unserved(self) -> None:
        """Tasks whose jobs wait although no active worker has them, each once while that lasts."""
        found = {(task, queue): lacking for task, queue, lacking in await self._session.run(store.unserved_lanes())}
        for lane in sorted(found.keys() - self._unserved)[:MOST_UNSERVED]:
            why, cure = unserved(*lane, found[lane])
            todo = cure if found[lane] else f"see `{program.command('doctor')}`"  # There is more than one cure.
            log.warning("jobs wait, and %s: %s", why, todo)
        self._unserved = set(found)

    async def crashing_tasks(self) -> None:
        command = self._config.on_quarantine
        crashing = store.crashing_tasks(jobs=CRASHING_JOBS, within_s=CRASHING_WITHIN_S, command=command is not None)
        for task in await self._session.run(crashing):
            log.error("task %(task)s keeps crashing: %(crashes)d crashes of %(jobs)d jobs in ten minutes", task)
            self._alerts.send(command, "task_keeps_crashing", task)
