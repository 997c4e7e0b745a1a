"""Sentry in a child: one event for each exception that has ended the job. Attempts that are tried again make none.

If the app has called `sentry_sdk.init`, its client makes the events. Otherwise this module calls it, and the
standard variables SENTRY_… configure it.
"""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import ContextVar
from uuid import UUID

from outlive.child.boundary import theirs
from outlive.errors import ConfigError, not_installed
from outlive.protocol import Run
from outlive.telemetry.carried import parts_of

try:
    import sentry_sdk
    from sentry_sdk.utils import BadDsn, event_from_exception, package_version
except ImportError:
    raise not_installed("sentry", "its SDK", extra="sentry") from None

SHARED = ("dsn", "environment", "release", "server_name")
"""The options of the app's client that the supervisor uses too: it makes the events of crashes."""

_scope: ContextVar[ExitStack] = ContextVar("outlive_scope")  # What the job that runs here has entered.


class Sentry:
    def __init__(self) -> None:
        if not sentry_sdk.get_client().is_active():
            try:
                sentry_sdk.init()
            except BadDsn as error:
                raise ConfigError(f"sentry is set, but SENTRY_DSN is not valid: {error}") from None
        options = sentry_sdk.get_client().options
        if not options.get("dsn"):
            raise ConfigError("sentry is set, but no DSN: set SENTRY_DSN, or call sentry_sdk.init(dsn=…) in the app")
        self.options = {name: str(options[name]) for name in SHARED if options.get(name) is not None}
        package_version("outlive")  # Events list all packages. The SDK keeps the list, which takes long to make.

    def begin(self, run: Run) -> None:
        """The job has a scope of its own: what it sets there does not reach the next job. It is in the trace of the
        request that has enqueued it; otherwise all attempts of the job share one."""
        _scope.set(scopes := ExitStack())
        scope = scopes.enter_context(sentry_sdk.isolation_scope())
        if (trace := parts_of(run.trace and run.trace[0])) is not None:
            sentry_sdk.continue_trace({"sentry-trace": "-".join(trace)})
        scope.set_transaction_name(run.task)
        scope.set_tag("outlive.task", run.task)
        scope.set_tag("outlive.job_id", str(UUID(bytes=run.job_id)))
        scope.set_tag("outlive.attempt", str(run.attempt))

    def failed(self, error: BaseException) -> None:
        """Make an event of what the job's code has raised."""
        client = sentry_sdk.get_client()
        mechanism = {"type": "outlive", "handled": False}
        found = (type(error), error, theirs(error))
        event, hint = event_from_exception(found, client_options=client.options, mechanism=mechanism)
        sentry_sdk.capture_event(event, hint=hint)

    def end(self) -> None:
        _scope.get().close()

    def flush(self, within_s: float) -> None:
        sentry_sdk.get_client().flush(timeout=within_s)
