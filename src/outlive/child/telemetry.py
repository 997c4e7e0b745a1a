"""What a child tells OpenTelemetry and Sentry about its jobs. Nothing, unless a setting turns one of them on.

The zygote starts the watchers before it forks, so that children inherit the libraries. An error in a watcher costs the
job nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from outlive import config as configuration
from outlive.importing import App
from outlive.protocol import Run

if TYPE_CHECKING:
    from outlive.child.channel import Channel

FLUSH_S = 1.5
"""How long a child that exits sends what is left. The supervisor kills it half a second later."""


class Watcher(Protocol):
    def begin(self, run: Run) -> None: ...
    def failed(self, error: BaseException) -> bool:
        """The job's code has raised this. Returns whether an event was made of it."""
        ...

    def end(self) -> None: ...
    def flush(self, within_s: float) -> None: ...


watchers: list[Watcher] = []


def start(app: App, channel: Channel) -> dict[str, str]:
    """Start the watchers that the settings turn on. Returns what the supervisor must know of the app's Sentry.

    ConfigError: a library is not installed.
    """
    config = configuration.load(app=app.settings)
    watchers.clear()
    if config.otel:
        from outlive.child.tracing import Tracing  # Not at the top: the libraries are optional.

        watchers.append(Tracing(channel))
    if not config.sentry:
        return {}
    from outlive.child.sentry import Sentry

    watchers.append(sentry := Sentry())
    return sentry.options


def begin(run: Run) -> None:
    for one in watchers:
        with contextlib.suppress(Exception):
            one.begin(run)


def failed(error: BaseException) -> bool:
    told = False
    for one in watchers:
        with contextlib.suppress(BaseException):  # It formats the job's exception, which may run the job's code.
            told = one.failed(error) or told
    return told


def end() -> None:
    for one in watchers:
        with contextlib.suppress(Exception):
            one.end()


def flush() -> None:
    """Send what is left, before this child exits."""
    for one in watchers:
        with contextlib.suppress(Exception):
            one.flush(FLUSH_S / len(watchers))
