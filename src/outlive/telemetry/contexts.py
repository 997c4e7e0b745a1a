"""The trace context that a job carries, and the ids of the spans of its attempts.

The ids follow from the job's id and the number of the attempt, so every process that knows these knows the span: the
supervisor that ends it, the child whose spans are below it, and the worker that notices the death of both.
"""

from __future__ import annotations

import hashlib
import re
from uuid import UUID

import msgspec

from outlive.errors import not_installed

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


class Carried(msgspec.Struct, frozen=True):
    """The trace context in the options of a job, beside its limits."""

    traceparent: str | None = None
    tracestate: str | None = None


def carried_by(options: bytes | None) -> SpanContext | None:
    """The span that has enqueued a job. Anyone can write options in SQL, so they may be anything."""
    if options is None or b'"traceparent"' not in options:
        return None
    try:
        found = msgspec.json.decode(options, type=Carried)
    except (msgspec.MsgspecError, RecursionError):
        return None
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


def trace_of(job: UUID) -> int:
    """The trace of a job that was enqueued without one. A hash, because samplers compare the last bits of a trace."""
    return int.from_bytes(hashlib.blake2b(job.bytes, digest_size=16).digest())


def span_of(job: UUID, attempt: int, kind: str) -> int:
    """The id of a span of an attempt: `run` or `wait`."""
    return int.from_bytes(hashlib.blake2b(b"%s %d" % (kind.encode(), attempt), key=job.bytes, digest_size=8).digest())
