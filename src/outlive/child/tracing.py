"""OpenTelemetry in a child: the job's spans are below the attempt's, which the supervisor makes.

If the app has set a tracer provider, its spans go where that sends them. Otherwise they go to the supervisor, each as
soon as it ends: a span that has ended is not lost when the child is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any

import msgspec

from outlive.child.channel import Channel
from outlive.errors import not_installed
from outlive.protocol import MAX_SPANS_BYTES, Done, Run, Spans
from outlive.telemetry import spans as plain

try:
    from opentelemetry import context, trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise not_installed("otel", "OpenTelemetry's SDK", extra="otel") from None

_attached: ContextVar[Token[context.Context] | None] = ContextVar("outlive_attached", default=None)
"""How to remove the context of the job that runs here: others may run beside it."""


class Tracing:
    def __init__(self, channel: Channel) -> None:
        provider = trace.get_tracer_provider()
        self._of_app = not isinstance(provider, trace.ProxyTracerProvider)
        if not self._of_app:
            provider = TracerProvider(shutdown_on_exit=False)
            provider.add_span_processor(SimpleSpanProcessor(ToSupervisor(channel)))
            trace.set_tracer_provider(provider)
        self._provider = provider

    def begin(self, run: Run) -> None:
        if run.trace is not None:
            headers = dict(zip(("traceparent", "tracestate"), run.trace, strict=True))
            _attached.set(context.attach(TraceContextTextMapPropagator().extract(headers, context.Context())))

    def end(self, done: Done) -> None:
        """Remove the context of this job, whatever the job itself has attached."""
        if (attached := _attached.get()) is not None:
            context.detach(attached)
            _attached.set(None)

    def flush(self, within_s: float) -> None:
        if self._of_app and isinstance(self._provider, TracerProvider):
            _at_most(within_s, self._provider.force_flush)


def _at_most(seconds: float, work: Callable[[], object]) -> None:
    """Work in a thread, and wait no longer than this: libraries don't always keep to their time limits."""
    import threading  # Not at the top: it would halve the rate of forks.

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


class ToSupervisor(SpanExporter):
    """Sends spans over the child's socket. Processes that the job forks have no such socket: theirs are lost."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            data = msgspec.msgpack.encode([_plain(one) for one in spans], enc_hook=_sequence)
            if len(data) <= MAX_SPANS_BYTES:
                self._channel.send(Spans(data))
                return SpanExportResult.SUCCESS
        except Exception:  # The job goes on. Its spans matter less.
            pass
        return SpanExportResult.FAILURE


def _plain(span: ReadableSpan) -> plain.Span:
    own, parent, scope = span.context, span.parent, span.instrumentation_scope
    return plain.Span(
        span.name,
        own.trace_id.to_bytes(16),
        own.span_id,
        None if parent is None else parent.span_id,
        own.trace_state.to_header(),
        span.kind.value,
        span.start_time or 0,
        span.end_time or 0,
        status=span.status.status_code.value,
        description=span.status.description,
        attributes=_attributes(span.attributes),
        events=[plain.Event(one.name, one.timestamp, _attributes(one.attributes)) for one in span.events],
        links=[
            plain.Link(one.context.trace_id.to_bytes(16), one.context.span_id, _attributes(one.attributes))
            for one in span.links
        ],
        scope=("", None, None) if scope is None else (scope.name, scope.version, scope.schema_url),
        parent_is_remote=parent is not None and parent.is_remote,
    )


def _attributes(found: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(found or {})


def _sequence(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)
