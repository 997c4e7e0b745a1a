"""Monitoring: /metrics, /healthz and /readyz, and notices to systemd, while a worker or a reaper runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from outlive.config import Config
from outlive.metrics import exposition
from outlive.metrics.endpoint import Endpoint, Response
from outlive.worker.loops import forever
from outlive.worker.reporting.systemd import Systemd
from outlive.worker.reporting.vitals import Vitals

KEEP_S = 1.0
"""How long a text is served again, so that no scraper makes the process write more often than this."""

_log = logging.getLogger("outlive.worker")


@asynccontextmanager
async def monitored(config: Config, vitals: Vitals, systemd: Systemd) -> AsyncIterator[None]:
    """Response probes and Prometheus if `metrics_listen` is set, and tell systemd that this process is alive."""
    loops = [asyncio.create_task(forever("systemd", systemd.run_once))]
    endpoint: Endpoint | None = None
    try:
        if config.metrics_listen is not None:
            exposition.require()
            pages = Pages(vitals)
            endpoint = Endpoint(
                config.metrics_listen,
                {"/metrics": pages.metrics, "/healthz": pages.healthz, "/readyz": pages.readyz},
            )
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

    async def healthz(self) -> Response:
        return _verdict(self._vitals.dead())

    async def readyz(self) -> Response:
        return _verdict(self._vitals.unready())

    async def metrics(self) -> Response:
        if self._writing is None or (self._writing.done() and time.monotonic() - self._written_at > KEEP_S):
            self._writing = asyncio.create_task(self._write())
        text = await asyncio.shield(self._writing)  # Others may wait for it too.
        return Response(HTTPStatus.OK, text, exposition.CONTENT_TYPE)

    async def _write(self) -> bytes:
        """The text is made by a thread: with hundreds of tasks it takes longer than the loop should stand still."""
        database = self._vitals.database
        of_database = await database.figures() if database else {}
        figures = {**self._vitals.figures(), **of_database}
        try:
            return await asyncio.to_thread(exposition.text, figures, process=True)
        finally:
            self._written_at = time.monotonic()


def _verdict(trouble: str | None) -> Response:
    if trouble is None:
        return Response(HTTPStatus.OK, b"ok\n")
    return Response(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
