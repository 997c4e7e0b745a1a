"""The trace context that a job carries (carried.py), and the spans of its attempts, as OpenTelemetry has them."""

from __future__ import annotations

import re
from uuid import UUID

from outlive.errors import not_installed
from outlive.telemetry import carried
from outlive.telemetry.carried import span_of

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise not_installed("otel", "OpenTelemetry", extra="otel") from None

_MEMBER = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}"
_STATE = re.compile(rf"{_MEMBER}(?:,{_MEMBER}){{0,31}}")
MAX_STATE_CHARS = 512
PROPAGATOR = TraceContextTextMapPropagator()


def carried_by(options: bytes | None) -> SpanContext | None:
    """The span that has enqueued a job."""
    found = carried.carried_by(options)
    state = found.tracestate or ""
    if len(state) > MAX_STATE_CHARS or not _STATE.fullmatch(state):
        state = ""  # OpenTelemetry would complain about it for every attempt.
    return None if found.traceparent is None else parse(found.traceparent, state)


def parse(traceparent: str, state: str) -> SpanContext | None:
    """The span that these headers of W3C name; None if they are not valid."""
    headers = {"traceparent": traceparent, "tracestate": state}
    found = trace.get_current_span(PROPAGATOR.extract(headers, Context())).get_span_context()
    return found if found.is_valid else None


def of_attempt(job: UUID, attempt: int, trace_id: int, parent: SpanContext | None, *, sampled: bool) -> SpanContext:
    """The span of an attempt, below the one that has enqueued the job."""
    state = TraceState() if parent is None else parent.trace_state
    return SpanContext(trace_id, span_of(job, attempt, "run"), False, TraceFlags(sampled), state)


def headers(span: SpanContext) -> tuple[str, str]:
    """The headers traceparent and tracestate that name a span."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}", span.trace_state.to_header()
