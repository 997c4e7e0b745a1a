"""The figures that describe the whole database: depth and age of queues, workers, sources, schedules.

If the database does not answer in time, they are left out: old figures would look like present ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from outlive import db, store
from outlive.errors import MissingRight, OutliveError, SchemaMismatch
from outlive.metrics import exposition
from outlive.metrics.catalogue import OF_DATABASE
from outlive.metrics.exposition import Figures
from outlive.statement import Row, Statement

KEEP_S = 5.0
"""How long figures are served again. After a failure the database is left alone for as long."""
WAIT_S = 3.0
"""How long a caller waits for the database. Prometheus waits for ten seconds unless it is told otherwise."""
SILENT = "the database does not answer"

_log = logging.getLogger("outlive.metrics")


class DatabaseMetrics:
    def __init__(self, run: Callable[[Statement[list[Row]]], Awaitable[list[Row]]], name: Callable[[], str]) -> None:
        self._run, self.name = run, name
        self._reading: asyncio.Task[Figures] | None = None
        self._read_at = 0.0
        self.trouble = SILENT
        """What keeps the figures away."""

    async def text(self) -> bytes:
        """What Prometheus reads; empty if there are no figures."""
        return exposition.text(await self.figures(), self.name())

    async def figures(self) -> Figures:
        """The figures by metric; none if the database does not answer, or refuses."""
        if self._reading is None or (self._reading.done() and time.monotonic() - self._read_at > KEEP_S):
            self._read_at = time.monotonic()
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait([self._reading], timeout=WAIT_S)
        return self._reading.result() if self._reading.done() else {}

    async def _read(self) -> Figures:
        before, self.trouble = self.trouble, SILENT
        try:
            with db.translated_errors():
                return by_metric(await self._run(store.metrics()))
        except OutliveError as error:
            if isinstance(error, MissingRight | SchemaMismatch):
                self.trouble = str(error)
                if self.trouble != before:
                    _log.warning("/metrics lacks the figures of the database: %s", self.trouble)
            return {}
        finally:
            self._read_at = time.monotonic()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


def by_metric(rows: list[Row]) -> Figures:
    """The rows of the view `outlive.metrics`, by metric and labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for name, label, value in rows:
        found.setdefault(f"outlive_{name}", {})[(label,) if label else ()] = value
    return {
        metric: list((dict.fromkeys(((value,) for value in metric.always), 0.0) | found.get(metric.name, {})).items())
        for metric in OF_DATABASE
    }
