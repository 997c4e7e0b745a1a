"""The spans of attempts: the supervisor makes them, so that an attempt whose process dies has its span too.

A thread sends them with OpenTelemetry's SDK. The standard variables OTEL_… say where to, and which of them. The ids
follow from the job's (carried.py), so the child knows them too.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import entry_points
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec

from outlive.errors import ConfigError, not_installed
from outlive.model import Claimed, Ended, LostRun
from outlive.states import Outcome
from outlive.telemetry import carried, spans
from outlive.telemetry.background import Background

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise not_installed("otel", "OpenTelemetry's SDK", extra="otel") from None

MAX_SPANS = 16
"""How many spans a job may send at once. Outlive's own code in a child sends one."""
RELAYED_SHARE = 0.5
"""How much of the room for spans those of jobs may fill. A job that makes too many takes no room from attempts."""
MAX_BEGUN = 100_000
"""More attempts than a worker ever has at a time."""
MAX_STATE_CHARS = 512
_MEMBER = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}"
_STATE = re.compile(rf"{_MEMBER}(?:,{_MEMBER}){{0,31}}")
_decoder = msgspec.msgpack.Decoder(Annotated[list[spans.Span], msgspec.Meta(max_length=MAX_SPANS)])
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class Begun(NamedTuple):
    context: SpanContext
    """The attempt's own span."""
    parent: SpanContext | None
    """The span that has enqueued the job."""
    at: float


class Tracing:
    def __init__(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        self._sampler, self._resource = provider.sampler, provider.resource
        self._exporters = list(_exporters())
        self._begun: dict[int, Begun] = {}
        self._background: Background[spans.Span | bytes] = Background("spans", self.send, _size)

    def begin(self, job: Claimed) -> tuple[str, str]:
        """The job goes to a child: the headers that name its run, below which the child's own spans are."""
        begun = self._begin(job)
        context = begun.context
        if context.trace_flags.sampled:
            self._begun[job.token] = begun
            if len(self._begun) > MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
        named = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return named, context.trace_state.to_header()

    def _begin(self, job: Claimed) -> Begun:
        parent = parent_of(job.options)
        trace_id = carried.trace_of(job.id) if parent is None else parent.trace_id
        within = None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent))
        decision = self._sampler.should_sample(within, trace_id, f"run {job.queue}", SpanKind.CONSUMER).decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        context = context_of(job.id, job.attempt, trace_id, parent, sampled=sampled)
        return Begun(context, parent, time.time())

    def ended(self, job: Claimed, end: Ended) -> None:
        """An attempt has ended. One that never ran has no span."""
        begun = self._begun.pop(job.token, None)
        if begun is None or (end.took_s is None and end.outcome in (Outcome.RELEASED, Outcome.CANCELLED)):
            return
        end_s = max(begun.at, time.time() - end.late_s)
        start_s = begun.at if end.took_s is None else max(begun.at, end_s - end.took_s)
        times = {"start_ns": int(start_s * 1e9), "end_ns": int(end_s * 1e9)}
        self._background.put(spans.of_attempt(job, end, begun.context, begun.parent, **times))

    def lost(self, run: LostRun) -> None:
        """Another worker has lost an attempt. When its job began to wait is not known."""
        context, parent, _ = self._begin(run.job)
        if context.trace_flags.sampled:
            times = {"start_ns": _ns(run.started_at), "end_ns": _ns(run.ended_at)}
            _, span = spans.of_attempt(run.job, run.end, context, parent, **times)
            self._background.put([span])

    def relay(self, data: bytes) -> None:
        """A child sends spans of its own."""
        self._background.put([data], RELAYED_SHARE)

    def close(self, within_s: float) -> None:
        self._background.close(within_s)

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


def parent_of(options: bytes | None) -> SpanContext | None:
    """The span that has enqueued a job with these options."""
    found = carried.carried_by(options)
    state = found.tracestate or ""
    if len(state) > MAX_STATE_CHARS or not _STATE.fullmatch(state):
        state = ""  # OpenTelemetry would complain about it for every attempt.
    return None if found.traceparent is None else parse(found.traceparent, state)


def parse(traceparent: str, state: str) -> SpanContext | None:
    """The span that these headers of W3C name; None if they are not valid."""
    headers = {"traceparent": traceparent, "tracestate": state}
    context = TraceContextTextMapPropagator().extract(headers, Context())
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def context_of(job: UUID, attempt: int, trace_id: int, parent: SpanContext | None, *, sampled: bool) -> SpanContext:
    """The span of an attempt, below the one that has enqueued the job."""
    state = TraceState() if parent is None else parent.trace_state
    return SpanContext(trace_id, carried.span_of(job, attempt, "run"), False, TraceFlags(sampled), state)


def _ns(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)


def _size(one: spans.Span | bytes) -> int:
    if isinstance(one, bytes):
        return len(one)
    return sum(len(str(value)) for event in one.events for value in event.attributes.values())  # A stack may be long.
