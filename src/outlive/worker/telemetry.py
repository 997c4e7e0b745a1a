"""What a worker or a reaper reports to OpenTelemetry and Sentry about attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlive.config import Config
from outlive.model import Claimed, Ended, LostRun
from outlive.worker.tracing import Tracing

if TYPE_CHECKING:
    from outlive.telemetry.crashes import Crashes

SEND_S = 2.0
"""How long the last spans and events may delay the end of the process."""


class Telemetry:
    def __init__(self, config: Config, worker: str, sentry: Mapping[str, str]) -> None:
        """ConfigError: a library is not installed."""
        self._tracing = Tracing() if config.otel else None
        self._crashes = _crashes(worker, sentry) if config.sentry else None

    def starting(self, job: Claimed) -> tuple[str, str] | None:
        """A job goes to a child. Returns the context of its span."""
        return None if self._tracing is None else self._tracing.begin(job)

    def traced(self, spans: bytes) -> None:
        """A child sends spans of its own."""
        if self._tracing is not None:
            self._tracing.relay(spans)

    def ended(self, job: Claimed, end: Ended) -> None:
        if self._tracing is not None:
            self._tracing.ended(job, end)
        if self._crashes is not None:
            self._crashes.ended(job, end)

    def lost(self, run: LostRun) -> None:
        """An attempt of another worker, which died or was silent for too long and so can't report it."""
        if self._tracing is not None:
            self._tracing.lost(run)
        if self._crashes is not None:
            self._crashes.ended(run.job, run.end)

    async def close(self) -> None:
        for one in (self._tracing, self._crashes):
            if one is not None:
                await asyncio.to_thread(one.close, SEND_S)


def telemetry(config: Config, worker: str, sentry: Mapping[str, str] | None = None) -> Telemetry | None:
    """None if the settings turn neither of them on."""
    return Telemetry(config, worker, sentry or {}) if config.otel or config.sentry else None


def _crashes(worker: str, sentry: Mapping[str, str]) -> Crashes:
    from outlive.telemetry.crashes import Crashes  # Not at the top: its library is optional.

    return Crashes(worker, sentry)
