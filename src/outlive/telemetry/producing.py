"""The spans of clients that enqueue jobs, and the trace context that the jobs carry.

Clients use the tracer of their own process. A process without one makes no span, and passes on the context that it has.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict

from outlive import luggage
from outlive.errors import not_installed
from outlive.model import JobRequest
from outlive.telemetry.enqueued import Carry, Enqueued

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise not_installed("otel", "OpenTelemetry", extra="otel") from None

_ATTRIBUTES = {
    "messaging.system": "outlive",
    "messaging.operation.name": "enqueue",
    "messaging.operation.type": "send",
}


def carrying(requests: list[JobRequest]) -> list[JobRequest]:
    """The same jobs with the trace context that is current here."""
    context: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(context)
    return luggage.loaded(requests, context)


@functools.lru_cache
def _server(database_url: str | None) -> Mapping[str, str | int]:
    """The attributes of the server with the database, if its address names one."""
    parts = conninfo_to_dict(database_url or "")
    host = str(parts.get("host") or parts.get("hostaddr") or "")
    if not host or "," in host:  # With several, the connection knows which one it is.
        return {}
    port = {} if host.startswith("/") else {"server.port": int(parts.get("port") or 5432)}
    return {"server.address": host, **port}


@contextmanager
def enqueuing(database_url: str | None) -> Iterator[Carry]:
    """A span around an enqueue. Jobs that go through the function that it yields carry its context."""
    enqueued = Enqueued()

    def carry(requests: list[JobRequest]) -> list[JobRequest]:
        if span.is_recording():
            enqueued.add(requests)
        return carrying(requests)

    tracer = trace.get_tracer("outlive")
    attributes = {**_ATTRIBUTES, **_server(database_url)}
    with tracer.start_as_current_span("enqueue", kind=trace.SpanKind.PRODUCER, attributes=attributes) as span:
        try:
            yield carry
        finally:
            if enqueued.queue is not None:
                span.update_name(f"enqueue {enqueued.queue}")
            span.set_attributes(enqueued.attributes())
