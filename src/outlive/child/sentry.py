"""Sentry in a child: one event for each exception that has ended the job, and one transaction for each attempt if the
SDK's own settings turn tracing on.

If the app has called `sentry_sdk.init`, its client makes both. Otherwise this module calls it, and the standard
variables SENTRY_… configure it. The client sends events. Transactions, which each job has, go to the supervisor: a
child that sent them would start a thread, and connect to Sentry before it could exit.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from contextvars import ContextVar
from time import time
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from outlive import job_gateway
from outlive.child.boundary import theirs
from outlive.errors import ConfigError, not_installed
from outlive.protocol import MAX_SPANS_BYTES, Done, Run, Spans
from outlive.states import Outcome
from outlive.telemetry.carried import parts_of, span_of

try:
    import sentry_sdk
    from sentry_sdk.envelope import Envelope
    from sentry_sdk.tracing import Span
    from sentry_sdk.tracing_utils import has_tracing_enabled
    from sentry_sdk.transport import Transport
    from sentry_sdk.utils import BadDsn, event_from_exception, package_version
except ImportError:
    raise not_installed("sentry", "its SDK", extra="sentry") from None

if TYPE_CHECKING:
    from outlive.child.channel import Channel

_REACHING = ("dsn", "http_proxy", "https_proxy", "ca_certs", "cert_file", "key_file")
SHARED = (*_REACHING, "environment", "release", "server_name")
"""The options of the app's client that the supervisor has too, for crashes and transactions."""
OWN_WAY = ("transport", "proxy_headers", "socket_options")
"""With one of these, the app's client sends in a way of its own, and so it sends transactions too."""
STATUS = {Outcome.SUCCEEDED: "ok", Outcome.FAILED: "internal_error", Outcome.OUT_OF_MEMORY: "internal_error"}
"""The status of a transaction. All others are "cancelled", which Sentry does not count as failures."""
ORIGIN = "auto.queue.outlive"

_scope: ContextVar[ExitStack] = ContextVar("outlive_scope")  # What the job that runs here has entered.
_transaction: ContextVar[Span | None] = ContextVar("outlive_transaction", default=None)
_sampled = re.compile("sentry-sampled=(true|false)")


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
        self._traces = has_tracing_enabled(options)
        if self._traces:
            _relay(sentry_sdk.get_client())
        package_version("outlive")  # Events list all packages. The SDK keeps the list, which takes long to make.

    def begin(self, run: Run) -> None:
        """The job has a scope of its own: what it sets there does not reach the next job. It is in the trace of the
        request that has enqueued it; otherwise all attempts of the job share one."""
        _scope.set(scopes := ExitStack())
        _transaction.set(None)
        scope = scopes.enter_context(sentry_sdk.isolation_scope())
        headers = _headers(run)
        if not self._traces and headers:
            sentry_sdk.continue_trace(headers)
        scope.set_transaction_name(run.task)
        scope.set_tag("outlive.task", run.task)
        scope.set_tag("outlive.job_id", str(UUID(bytes=run.job_id)))
        scope.set_tag("outlive.attempt", str(run.attempt))
        if self._traces:
            _transaction.set(scopes.enter_context(_started(run, headers)))

    def failed(self, error: BaseException) -> None:
        """Make an event of what the job's code has raised."""
        client = sentry_sdk.get_client()
        mechanism = {"type": "outlive", "handled": False}
        found = (type(error), error, theirs(error))
        event, hint = event_from_exception(found, client_options=client.options, mechanism=mechanism)
        sentry_sdk.capture_event(event, hint=hint)

    def end(self, done: Done) -> None:
        if (transaction := _transaction.get()) is not None:
            transaction.set_status(STATUS.get(done.outcome, "cancelled"))
        _scope.get().close()

    def flush(self, within_s: float) -> None:
        sentry_sdk.get_client().flush(timeout=within_s)


def _headers(run: Run) -> dict[str, str]:
    """Sentry's headers for the trace that the job carries. Whether it is sampled was decided only if the process that
    enqueued the job traces too: the baggage says so."""
    trace, state = run.trace or (None, "")
    if (parts := parts_of(trace)) is None:
        return {}
    if "sentry-trace_id=" not in state:
        return {"sentry-trace": "-".join(parts)}
    decided = _sampled.search(state)
    flag = () if decided is None else ("1" if decided[1] == "true" else "0",)
    return {"sentry-trace": "-".join((*parts, *flag)), "baggage": state}


def _started(run: Run, headers: dict[str, str]) -> Span:
    """The transaction of an attempt. That of a job which no request has enqueued begins a trace."""
    job = UUID(bytes=run.job_id)
    about: dict[str, Any] = {"op": "queue.process", "name": run.task, "source": "task", "origin": ORIGIN}
    parts, own = parts_of(run.trace and run.trace[0]), f"{span_of(job, run.attempt, 'run'):016x}"
    continued = sentry_sdk.continue_trace(headers, **about)
    if parts is not None and parts[1] == own:
        transaction: Span = sentry_sdk.start_transaction(trace_id=parts[0], span_id=own, **about)
    else:
        transaction = sentry_sdk.start_transaction(continued)
    transaction.set_data("messaging.system", "outlive")
    transaction.set_data("messaging.message.id", str(job))
    transaction.set_data("messaging.destination.name", run.queue)
    transaction.set_data("messaging.message.retry.count", run.attempt - 1)
    if run.ready_at:
        transaction.set_data("messaging.message.receive.latency", max(0.0, (time() - run.ready_at) * 1000))
    return transaction


def _relay(client: Any) -> None:
    """Let the supervisor send the transactions of this client."""
    client.monitor = None  # It would start a thread for each job, and see only what its own process sends.
    if client.transport is not None and not any(client.options.get(name) for name in OWN_WAY):
        client.transport = ToSupervisor(client.transport)


class ToSupervisor(Transport):
    """Hands transactions to the supervisor, and all else to the client's own transport. A process that the job forks
    has no socket to the supervisor: it uses the other way too."""

    def __init__(self, own: Transport) -> None:
        super().__init__(own.options)
        self._own = own
        self.flush, self.kill, self.is_healthy = own.flush, own.kill, own.is_healthy  # type: ignore[method-assign]
        self.record_lost_event = own.record_lost_event  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def capture_envelope(self, envelope: Envelope) -> None:
        if envelope.get_transaction_event() is None or not _hand_over(envelope):
            self._own.capture_envelope(envelope)


def _hand_over(envelope: Envelope) -> bool:
    """Send a transaction to the supervisor. False if that takes none of this size, or is out of reach."""
    data = envelope.serialize()
    if len(data) > MAX_SPANS_BYTES:
        return False
    try:  # In a shared child, the gateway is the only one that may write to the socket.
        cast("Channel", job_gateway.gateway).send(Spans(data, to_sentry=True))
    except Exception:
        return False
    return True
