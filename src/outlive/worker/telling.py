"""What a worker or a reaper tells OpenTelemetry and Sentry about attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from outlive.config import Config
from outlive.model import Claimed, Ended, LostRun
from outlive.worker.crash_events import CrashEvents
from outlive.worker.tracing import Tracing

SEND_S = 2.0
"""How long the last spans and events may delay the end of the process."""


class Telling:
    def __init__(self, config: Config, name: str, sentry: Mapping[str, str]) -> None:
        """ConfigError: a library is not installed."""
        self._tracing = Tracing() if config.otel else None
        self._crash_events = CrashEvents(name, sentry) if config.sentry else None

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
        if self._crash_events is not None:
            self._crash_events.ended(job, end)

    def lost(self, run: LostRun) -> None:
        """An attempt of another worker, which died or was silent for too long, and can't tell."""
        if self._tracing is not None:
            self._tracing.lost(run)
        if self._crash_events is not None:
            self._crash_events.ended(run.job, run.end)

    async def close(self) -> None:
        for one in (self._tracing, self._crash_events):
            if one is not None:
                await asyncio.to_thread(one.close, SEND_S)


def telling(config: Config, name: str, sentry: Mapping[str, str] | None = None) -> Telling | None:
    return Telling(config, name, sentry or {}) if config.otel or config.sentry else None
