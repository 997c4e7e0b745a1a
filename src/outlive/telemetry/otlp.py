"""Sends spans with OpenTelemetry's SDK. The standard variables OTEL_… say where to, and which of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Annotated

import msgspec

from outlive.errors import ConfigError, not_installed
from outlive.telemetry import spans

try:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
except ImportError:
    raise not_installed("otel", "OpenTelemetry's SDK", extra="otel") from None

MAX_SPANS = 16
"""How many spans a job may send at once. Outlive's own code in a child sends one."""
_decoder = msgspec.msgpack.Decoder(Annotated[list[spans.Span], msgspec.Meta(max_length=MAX_SPANS)])
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class Otlp:
    """Exports the spans of a worker."""

    def __init__(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        self._sampler, self._resource = provider.sampler, provider.resource
        self._exporters = list(_exporters())

    def samples(self, trace_id: int, parent: SpanContext | None, name: str) -> bool:
        """Whether a span is to be made in this trace."""
        context = None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent))
        decision = self._sampler.should_sample(context, trace_id, name, SpanKind.CONSUMER).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def send(self, things: list[spans.Span | bytes]) -> None:
        """Send the supervisor's spans, and the children's, which come as frames. A bad frame spoils no other spans."""
        self._export(one for one in things if isinstance(one, spans.Span))
        frames = [one for one in things if isinstance(one, bytes)]
        try:
            self._export(span for frame in frames for span in _decoder.decode(frame))
        except ConnectionError:
            raise
        except Exception:  # A job may send anything: only its own spans are lost.
            for frame in frames:
                with contextlib.suppress(Exception):
                    self._export(_decoder.decode(frame))

    def _export(self, found: Iterable[spans.Span]) -> None:
        if batch := [self._readable(one) for one in found]:
            for exporter in self._exporters:
                if exporter.export(batch) is not SpanExportResult.SUCCESS:
                    raise ConnectionError("the receiver did not take them")

    def shutdown(self) -> None:
        for exporter in self._exporters:
            exporter.shutdown()

    def _readable(self, one: spans.Span) -> ReadableSpan:
        trace_id, state = int.from_bytes(one.trace_id), TraceState.from_header([one.state])
        flags = TraceFlags(TraceFlags.SAMPLED)
        links = [(SpanContext(int.from_bytes(link.trace_id), link.span_id, True, flags), link) for link in one.links]
        parent_id = one.parent_id
        return ReadableSpan(
            name=one.name,
            context=SpanContext(trace_id, one.span_id, False, flags, state),
            parent=None if parent_id is None else SpanContext(trace_id, parent_id, one.parent_is_remote, flags, state),
            resource=self._resource,
            attributes=one.attributes,
            events=[Event(event.name, event.attributes, event.at_ns) for event in one.events],
            links=[Link(context, link.attributes) for context, link in links],
            kind=SpanKind(one.kind),
            status=Status(StatusCode(one.status), one.description),
            start_time=one.start_ns,
            end_time=one.end_ns,
            instrumentation_scope=InstrumentationScope(*one.scope),
        )


def _exporters() -> Iterable[SpanExporter]:
    """The exporters that OTEL_TRACES_EXPORTER names: those of installed packages, or none."""
    environ = os.environ
    names = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",") if name.strip()]
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    for name in names:
        if name == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            continue
        known = _PROTOCOLS.get(protocol or "http/protobuf", protocol or "") if name == "otlp" else name
        found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=known)), None)
        if found is None:
            raise ConfigError(
                f"otel is set, but the exporter {known} of OpenTelemetry is not installed: install its package, or "
                "change OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL"
            )
        yield found.load()()
