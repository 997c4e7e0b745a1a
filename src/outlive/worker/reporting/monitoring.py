"""Monitoring: /metrics, /healthz and /readyz, and notices to systemd, while a worker or a reaper runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus

from outlive.config import Config
from outlive.metrics import exposition
from outlive.metrics.endpoint import Endpoint, Response, Routes
from outlive.worker.loops import forever
from outlive.worker.reporting.vitals import Vitals

KEEP_S = 1.0
"""How long a text is served again, so that no scraper makes the process write more often than this."""
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Jobs don't have these in their environment: they could send notifications in the name of their worker."""
EVERY_S = 10.0

_log = logging.getLogger("outlive.worker")


@contextlib.asynccontextmanager
async def monitored(config: Config, vitals: Vitals, systemd: Systemd) -> AsyncIterator[None]:
    """Answer probes and Prometheus if `metrics_listen` is set, and tell systemd that this process is alive."""
    loops = [asyncio.create_task(forever("systemd", systemd.run_once))]
    endpoint: Endpoint | None = None
    try:
        if config.metrics_listen is not None:
            exposition.require()
            endpoint = Endpoint(config.metrics_listen, Pages(vitals).routes())
            _log.info("metrics and probes are at %s", endpoint.address)
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

    def ready(self) -> None:
        self._send("READY=1", f"STATUS={self._vitals.status()}")

    def stopping(self) -> None:
        self._send("STOPPING=1", f"STATUS={self._vitals.status()}")

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
