"""What a worker or a reaper reports to OpenTelemetry and Sentry about attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlive.config import Config
from outlive.model import Claimed, Ended, LostRun
from outlive.telemetry import carried

if TYPE_CHECKING:
    from outlive.telemetry.crashes import Crashes
    from outlive.telemetry.tracing import Tracing

SEND_S = 2.0
"""How long the last spans and events may delay the end of the process."""


class Telemetry:
    def __init__(self, config: Config, worker: str, sentry: Mapping[str, str] | None = None) -> None:
        """Nothing is reported unless the settings say so. ConfigError: a library is not installed."""
        self._tracing: Tracing | None = None
        self._crashes: Crashes | None = None
        self.receivers: list[Tracing | Crashes] = []
        if config.otel:
            from outlive.telemetry.tracing import Tracing  # Not at the top: the libraries are optional.

            self._tracing = Tracing()
            self.receivers.append(self._tracing)
        if config.sentry:
            from outlive.telemetry.crashes import Crashes

            self._crashes = Crashes(worker, sentry or {})
            self.receivers.append(self._crashes)

    def starting(self, job: Claimed) -> tuple[str, str] | None:
        """A job goes to a child. Returns the context of its span, or with Sentry alone of the one that enqueued it."""
        if self._tracing is not None:
            return self._tracing.begin(job)
        if not self.receivers:
            return None
        trace, parent, own = carried.trace_of_attempt(job)
        return f"00-{trace}-{parent or own}-01", carried.carried_by(job.options).tracestate or ""

    def traced(self, spans: bytes, *, to_sentry: bool) -> None:
        """A child sends spans of its own, or a transaction of Sentry."""
        if to_sentry:
            if self._crashes is not None:
                self._crashes.relay(spans)
        elif self._tracing is not None:
            self._tracing.relay(spans)

    def ended(self, job: Claimed, end: Ended) -> None:
        for one in self.receivers:
            one.ended(job, end)

    def lost(self, run: LostRun) -> None:
        """An attempt of another worker, which died or was silent for too long and so can't report it."""
        for one in self.receivers:
            one.lost(run)

    async def close(self) -> None:
        for one in self.receivers:
            await asyncio.to_thread(one.close, SEND_S)
