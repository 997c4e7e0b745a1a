"""Trace contexts as W3C text, and the ids of the spans of attempts. No library is needed for them.

The ids follow from the job's id and the number of the attempt, so every process that knows these knows the span: the
supervisor that ends it, the child whose spans are below it, and the worker that notices the death of both.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from uuid import UUID

import msgspec

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_MEMBER = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}"
_STATE = re.compile(rf"{_MEMBER}(?:,{_MEMBER}){{0,31}}")
MAX_STATE_CHARS = 512


class TraceContext(NamedTuple):
    """A span as other processes know it."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"


class Carried(msgspec.Struct, frozen=True):
    """The trace context in the options of a job, beside its limits."""

    traceparent: str | None = None
    tracestate: str | None = None


def parse(traceparent: str, state: str = "") -> TraceContext | None:
    """The context in this text; None if it is not valid."""
    found = _PARENT.fullmatch(traceparent)
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return TraceContext(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & _SAMPLED), state)


def carried_by(options: bytes | None) -> TraceContext | None:
    """The context with which a job was enqueued. Anyone can write options in SQL, so they may be anything."""
    if options is None or b'"traceparent"' not in options:
        return None
    try:
        found = msgspec.json.decode(options, type=Carried)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return None if found.traceparent is None else parse(found.traceparent, _valid(found.tracestate or ""))


def _valid(state: str) -> str:
    """The state if it is valid, or else an empty one: OpenTelemetry would complain about it for every attempt."""
    return state if len(state) <= MAX_STATE_CHARS and _STATE.fullmatch(state) else ""


def trace_of(job: UUID) -> int:
    """The trace of a job that was enqueued without one. A hash, because samplers compare the last bits of a trace."""
    return int.from_bytes(hashlib.blake2b(job.bytes, digest_size=16).digest())


def span_of(job: UUID, attempt: int, kind: str) -> int:
    """The id of a span of an attempt: `run` or `wait`."""
    return int.from_bytes(hashlib.blake2b(b"%s %d" % (kind.encode(), attempt), key=job.bytes, digest_size=8).digest())
