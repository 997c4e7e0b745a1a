"""The spans of clients that enqueue jobs, and the trace context that the jobs carry.

Clients use the tracer of their own process. A process without one makes no span, and passes on the context that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from msgspec.structs import replace

from outlive import wire
from outlive.errors import not_installed
from outlive.model import JobRequest
from outlive.policy import DEFAULT_QUEUE
from outlive.telemetry.contexts import PROPAGATOR

try:
    from opentelemetry import trace
except ImportError:
    raise not_installed("otel", "OpenTelemetry", extra="otel") from None

Carry = Callable[[list[JobRequest]], list[JobRequest]]
"""Gives jobs the trace context that is current."""

_ATTRIBUTES = {
    "messaging.system": "outlive",
    "messaging.operation.name": "enqueue",
    "messaging.operation.type": "send",
}


def carrying(requests: list[JobRequest]) -> list[JobRequest]:
    """The same jobs with the trace context that is current here."""
    context: dict[str, str] = {}
    PROPAGATOR.inject(context)
    if not context:
        return requests
    own = wire.encode(context)
    return [replace(one, options=_both(one.options, own)) for one in requests]


def _both(limits: bytes | None, context: bytes) -> bytes:
    return context if limits is None else limits[:-1] + b"," + context[1:]  # A job has no empty options.


@contextmanager
def enqueuing() -> Iterator[Carry]:
    """A span around an enqueue. Jobs that go through the function that it yields carry its context."""
    queues: set[str] = set()
    tasks: set[str] = set()
    first: UUID | None = None
    count = 0

    def carry(requests: list[JobRequest]) -> list[JobRequest]:
        nonlocal first, count
        if requests and span.is_recording():
            queues.update(one.queue or DEFAULT_QUEUE for one in requests)
            tasks.update(one.task for one in requests)
            first, count = requests[0].id, count + len(requests)
        return carrying(requests)

    tracer = trace.get_tracer("outlive")
    with tracer.start_as_current_span("enqueue", kind=trace.SpanKind.PRODUCER, attributes=_ATTRIBUTES) as span:
        try:
            yield carry
        finally:
            if len(queues) == 1:
                queue = queues.pop()
                span.update_name(f"enqueue {queue}")
                span.set_attribute("messaging.destination.name", queue)
            if len(tasks) == 1:
                span.set_attribute("outlive.task", tasks.pop())
            if count == 1:
                span.set_attribute("messaging.message.id", str(first))
            else:
                span.set_attribute("messaging.batch.message_count", count)
