"""The trace that a job carries in its options, and the ids of the spans of its attempts. This needs no library.

The ids follow from the job's id and the number of the attempt, so every process that knows these knows the span.
"""

from __future__ import annotations

import hashlib
import re
import sys
from uuid import UUID

import msgspec

from outlive import luggage
from outlive.model import Claimed, JobRequest

_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


class Carried(msgspec.Struct, frozen=True):
    """The trace context in the options of a job, beside its limits: headers of W3C. Sentry's own header, baggage, is a
    valid tracestate, and is kept as that."""

    traceparent: str | None = None
    tracestate: str | None = None


def carrying(requests: list[JobRequest], *, otel: bool) -> list[JobRequest]:
    """The same jobs with the baggage and the trace context of now: OpenTelemetry's, or Sentry's without that."""
    if otel:
        from outlive.telemetry import producing  # Not at the top: its library is optional.

        return producing.carrying(requests)
    return _carrying_sentry(requests)


def _carrying_sentry(requests: list[JobRequest]) -> list[JobRequest]:
    """The same jobs with the trace of Sentry that is current here, if its SDK is started."""
    sdk = sys.modules.get("sentry_sdk")
    if sdk is None or not sdk.get_client().is_active():
        return luggage.loaded(requests)
    trace, span, *sampled = (sdk.get_traceparent() or "-").split("-")
    header = f"00-{trace}-{span}-{'00' if sampled == ['0'] else '01'}"
    if parts_of(header) is None:
        return luggage.loaded(requests)
    options = sdk.get_client().options
    traces = options.get("traces_sample_rate") is not None or options.get("traces_sampler") is not None
    state = sdk.get_baggage() if traces else None
    return luggage.loaded(requests, {"traceparent": header, **({"tracestate": state} if state else {})})


def carried_by(options: bytes | None) -> Carried:
    """The trace context of a job. Anyone can write options in SQL, so they may be anything."""
    if options is None or b'"traceparent"' not in options:
        return Carried()
    try:
        return msgspec.json.decode(options, type=Carried)
    except (msgspec.MsgspecError, RecursionError):
        return Carried()


def parts_of(traceparent: str | None) -> tuple[str, str] | None:
    """The ids of the trace and of the span that a header names; None if it is not valid."""
    found = _PARENT.fullmatch(traceparent or "")
    return None if found is None else (found[1], found[2])


def trace_of_attempt(job: Claimed) -> tuple[str, str | None, str]:
    """The ids of the trace, of the span that has enqueued the job, and of the attempt's own."""
    trace, parent = parts_of(carried_by(job.options).traceparent) or (f"{trace_of(job.id):032x}", None)
    return trace, parent, f"{span_of(job.id, job.attempt, 'run'):016x}"


def trace_of(job: UUID) -> int:
    """The trace of a job that was enqueued without one. A hash, because samplers compare the last bits of a trace."""
    return int.from_bytes(hashlib.blake2b(job.bytes, digest_size=16).digest())


def span_of(job: UUID, attempt: int, kind: str) -> int:
    """The id of a span of an attempt: `run` or `wait`."""
    return int.from_bytes(hashlib.blake2b(b"%s %d" % (kind.encode(), attempt), key=job.bytes, digest_size=8).digest())
