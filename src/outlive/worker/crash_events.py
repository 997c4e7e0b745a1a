"""Tells Sentry of attempts whose process died. A thread does that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlive.model import Claimed, Ended
from outlive.telemetry.background import Background

if TYPE_CHECKING:
    from outlive.telemetry.crashes import Crash


class CrashEvents:
    def __init__(self, worker: str, options: Mapping[str, str]) -> None:
        """The options are those of the app's own client. ConfigError: the library is not installed."""
        from outlive.telemetry import crashes  # Here, because its library is optional.

        self._worker, self._crash, self._causes = worker, crashes.Crash, crashes.CAUSES
        self._crashes = crashes.Crashes(options)
        self._background: Background[Crash] = Background("events", self._crashes.send, _size)

    def ended(self, job: Claimed, end: Ended) -> None:
        """An attempt has ended. If its process has raised an exception, that has made the event."""
        if end.outcome in self._causes and not end.told:
            self._background.put([self._crash(job, end, self._worker)])

    def close(self, within_s: float) -> None:
        self._background.close(within_s / 2)
        self._crashes.close(within_s / 2)


def _size(crash: Crash) -> int:
    return len(crash.end.output or "") + len(crash.end.stack or "") + len(crash.job.args or b"")
