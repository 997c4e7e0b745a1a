"""What a child reports to OpenTelemetry and Sentry about its jobs. Nothing, unless a setting turns one of them on.

The zygote starts the watchers before it forks, so that children inherit the libraries. An error in a watcher costs the
job nothing.
"""

from __future__ import annotations

import sys
from time import time
from typing import TYPE_CHECKING

from outlive import config as configuration
from outlive.child.boundary import Raised, guarded
from outlive.errors import Fail, Retry
from outlive.importing import App
from outlive.protocol import Done, Run
from outlive.states import Outcome

if TYPE_CHECKING:
    from outlive.child.channel import Channel
    from outlive.child.sentry import Sentry
    from outlive.child.tracing import Tracing

FLUSH_S = 1.5  # How long a child that exits sends what is left. The supervisor kills it half a second later.


class Watchers:
    def __init__(self, tracing: Tracing | None, sentry: Sentry | None) -> None:
        self._sentry = sentry
        self._all = [one for one in (tracing, sentry) if one is not None]
        self.sentry = {} if sentry is None else sentry.options  # For events of crashes, which the supervisor makes.

    def begin(self, run: Run) -> None:
        for one in self._all:
            guarded(one.begin, run)

    def end(self, run: Run, done: Done, returned: object | Raised) -> None:
        """The job has ended like this."""
        if not self._all:
            return
        if self._sentry is not None and isinstance(returned, Raised) and _is_failure(done, type(returned.error)):
            if run.decisive or done.final:
                done.told = not isinstance(guarded(self._sentry.failed, returned.error), Raised)
            else:  # The job is tried again. The supervisor tells only of processes that were killed.
                done.told = done.outcome is Outcome.OUT_OF_MEMORY
        for one in self._all:
            guarded(one.end, done)
        done.ended_at = time()

    def flush(self) -> None:
        """Send what is left, before this child exits."""
        for one in self._all:
            guarded(one.flush, FLUSH_S / len(self._all))


UNWATCHED = Watchers(None, None)


def _is_failure(done: Done, kind: type[BaseException]) -> bool:
    """Whether its code has failed. An exception without a stack, and `Fail`, say how the job should end. `Retry` does
    too, but the last one ends it in a failure."""
    return issubclass(kind, Retry) or (done.stack is not None and not issubclass(kind, Fail))


def reports_elsewhere(app: App) -> bool:
    """Whether the app has a client of Sentry, but the setting is off: jobs end in other processes, and none reports."""
    sdk = sys.modules.get("sentry_sdk")
    return sdk is not None and sdk.get_client().is_active() and not configuration.load(app=app.settings).sentry


def start(app: App, channel: Channel) -> Watchers:
    """The watchers that the settings turn on. ConfigError: a library is not installed."""
    config = configuration.load(app=app.settings)
    tracing = sentry = None
    if config.otel:
        from outlive.child.tracing import Tracing  # Not at the top: the libraries are optional.

        tracing = Tracing(channel)
    if config.sentry:
        from outlive.child.sentry import Sentry

        sentry = Sentry()
    return Watchers(tracing, sentry)
