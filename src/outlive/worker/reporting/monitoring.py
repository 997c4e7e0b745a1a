"""Monitoring of a worker or a reaper: whether it is alive and ready, and its figures. Probes, Prometheus (/healthz,
/readyz and /metrics) and systemd ask."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Literal

from outlive import db
from outlive.config import Config
from outlive.humanize import counted
from outlive.metrics import catalogue, exposition
from outlive.metrics.database import SILENT, DatabaseMetrics
from outlive.metrics.endpoint import Endpoint, Response, Routes
from outlive.metrics.exposition import Figures, Values
from outlive.worker import log
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.fleet.registration import Identity
from outlive.worker.loops import forever
from outlive.worker.services import Services
from outlive.worker.session import Session

TURN_S = 120.0
"""A loop that has begun no turn for this long hangs. A turn ends much earlier, also if the database is silent."""
UP_S = 10.0
"""The database is away if it has answered nothing for this long. Every process asks it something each second."""
KEEP_S = 1.0
"""How long a text is served again, so that no scraper makes the process write more often than this."""
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Jobs don't have these in their environment: they could send notifications in the name of their worker."""
EVERY_S = 10.0


class WorkerVitals:
    def __init__(self, me: Identity) -> None:
        self._at_first = me
        self.services: Services | None = None
        """Set once the app is imported. It may set the name and the slots of its workers."""
        self.started = self.stopping = False

    def dead(self) -> str | None:
        """Why this process should be restarted; None if it is alive."""
        return _hangs("claim", self.services.claims.turned_at) if self.services and self.started else None

    def unready(self) -> str | None:
        """Why this process does not work at present; None if it does."""
        if self.stopping:
            return "this worker stops"
        if self.services is None:
            return "the app is being imported"
        if not self.started:
            return "this worker registers itself"
        if (silence := _silence(self.services.sessions)) is not None:
            return silence
        if (trouble := self.services.slots.trouble) is not None:
            return f"this worker can't begin any job: {trouble}"
        return self.dead()

    @property
    def _size(self) -> int:
        return self.services.slots.size if self.services else self._at_first.slots

    def status(self) -> str:
        slots = self.services.slots if self.services else None
        busy, jobs = (len(slots.busy), len(slots.running)) if slots else (0, 0)
        words = f"{busy} of {counted(self._size, 'slot is', 'slots are')} busy"
        words += f" with {counted(jobs, 'job')}" if jobs > busy else ""
        return f"{unready}; {words}" if (unready := self.unready()) else words

    def figures(self) -> Figures:
        services = self.services
        me = services.me if services else self._at_first
        found = {catalogue.WORKER: [((me.name, str(me.id), version("outlive")), 1.0)]}
        if services is None:
            return {**found, catalogue.SLOTS: _only(self._size), catalogue.UP: _only(0)}
        return {
            **(services.tallies.figures() if services.tallies else {}),
            **found,
            catalogue.SLOTS: _only(self._size),
            catalogue.SLOTS_BUSY: _only(len(services.slots.busy)),
            catalogue.RUNNING: _only(len(services.slots.running)),
            catalogue.RENEWALS: _only(services.leases.renewals),
            catalogue.FENCED: _only(services.leases.fenced),
            **_of_process(services.reaper, services.sessions),
        }

    @property
    def database(self) -> DatabaseMetrics | None:
        """The figures of the whole database; None if it is not connected yet."""
        return self.services.metrics if self.services else None


class ReaperVitals:
    """Those of `outlive reap`."""

    def __init__(self, reaper: Reaper, metrics: Session) -> None:
        self._reaper, self._sessions = reaper, (reaper.session, metrics)
        self.database = DatabaseMetrics(metrics.run, lambda: db.named(metrics.url))
        self.stopping = False

    def dead(self) -> str | None:
        return _hangs("reap", self._reaper.checked_at)

    def unready(self) -> str | None:
        if self.stopping:
            return "this reaper stops"
        return _silence(self._sessions) or self.dead()

    def status(self) -> str:
        return self.unready() or f"{self._reaper.attempts_ended} attempts were ended"

    def figures(self) -> Figures:
        return _of_process(self._reaper, self._sessions)


Vitals = WorkerVitals | ReaperVitals


def _of_process(reaper: Reaper, sessions: Iterable[Session]) -> Figures:
    trips: Counter[str] = Counter()
    for session in sessions:
        trips.update(session.round_trips)
    return {
        catalogue.QUARANTINED: [((task,), count) for task, count in reaper.announcements.quarantines.items()],
        catalogue.REAPED: _only(reaper.attempts_ended),
        catalogue.ROUND_TRIPS: [((statement,), count) for statement, count in trips.items()],
        catalogue.UP: _only(_answered(sessions)),
    }


def _only(figure: float) -> Values:
    """The figure of a metric without labels."""
    return [((), float(figure))]


def _answered(sessions: Iterable[Session]) -> bool:
    return time.monotonic() - max(session.answered_at for session in sessions) < UP_S


def _silence(sessions: Iterable[Session]) -> str | None:
    """Why the database is of no use to this process; None if it answers."""
    return None if _answered(sessions) else next((one.lacks for one in sessions if one.lacks), SILENT)


def _hangs(loop: str, turned_at: float) -> str | None:
    idle_s = time.monotonic() - turned_at
    return f"the {loop} loop has begun no turn for {idle_s:.0f} s" if idle_s > TURN_S else None


@contextlib.asynccontextmanager
async def monitored(config: Config, vitals: Vitals, systemd: Systemd) -> AsyncIterator[None]:
    """Answer probes and Prometheus if `metrics_listen` is set, and tell systemd that this process is alive."""
    loops = [asyncio.create_task(forever("systemd", systemd.run_once))]
    endpoint: Endpoint | None = None
    try:
        if config.metrics_listen is not None:
            exposition.require()
            endpoint = Endpoint(config.metrics_listen, Pages(vitals).routes())
            log.info("metrics and probes are at %s", endpoint.address)
            loops.append(asyncio.create_task(forever("endpoint", endpoint.run_once)))
        yield
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)
        if endpoint is not None:
            await endpoint.close()


class Pages:
    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._writing: asyncio.Task[bytes] | None = None
        self._written_at = 0.0

    def routes(self) -> Routes:
        dead, unready = self._vitals.dead, self._vitals.unready
        return {"/metrics": self._metrics, "/healthz": partial(_probe, dead), "/readyz": partial(_probe, unready)}

    async def _metrics(self) -> Response:
        if self._writing is None or (self._writing.done() and time.monotonic() - self._written_at > KEEP_S):
            self._writing = asyncio.create_task(self._write())
        text = await asyncio.shield(self._writing)  # Others may wait for it too.
        return Response(HTTPStatus.OK, text, exposition.CONTENT_TYPE)

    async def _write(self) -> bytes:
        """The text is made by a thread: with hundreds of tasks it takes longer than the loop should stand still."""
        database = self._vitals.database
        of_database, name = (await database.figures(), database.name()) if database else ({}, "")
        figures = {**self._vitals.figures(), **of_database}
        try:
            return await asyncio.to_thread(exposition.text, figures, name, process=True)
        finally:
            self._written_at = time.monotonic()


async def _probe(trouble: Callable[[], str | None]) -> Response:
    why = trouble()
    status = HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(status, f"{why or 'ok'}\n".encode())


class Systemd:
    """Notifies systemd that this process is ready, alive or stopping, as sd_notify(3) says: by lines in a datagram."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._socket = os.environ.get("NOTIFY_SOCKET")
        mine = os.environ.get("WATCHDOG_PID") in (None, str(os.getpid()))
        within_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 if mine else 0.0
        self._every_s = min(EVERY_S, within_s / 2) if within_s else EVERY_S
        self._owed: tuple[str, ...] = ()
        """What could not be sent, and must be: it goes with the next lines."""

    def notify(self, state: Literal["READY=1", "STOPPING=1"]) -> None:
        self._send(state, f"STATUS={self._vitals.status()}")

    async def run_once(self) -> None:
        """Notify that this process is alive, twice as often as systemd requires. Without that, systemd kills it."""
        trouble = self._vitals.dead()
        self._send(*(["WATCHDOG=1"] if trouble is None else []), f"STATUS={trouble or self._vitals.status()}")
        await asyncio.sleep(self._every_s)

    def _send(self, *lines: str) -> None:
        if not self._socket:
            return
        address = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
        lines = (*self._owed, *lines)
        self._owed = tuple(line for line in lines if line in ("READY=1", "STOPPING=1"))
        with (
            contextlib.suppress(OSError),  # Its queue is full, or it restarts: the next lines may arrive.
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
            self._owed = ()
