"""Spans as plain data: those of attempts, which the supervisor makes, and those of children, which they send to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec.structs import replace

from outlive.model import Claimed, Ended
from outlive.states import FAULTS, Outcome
from outlive.telemetry.carried import span_of

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

SCOPE = "outlive"
INTERNAL, CONSUMER = 0, 4
"""Kinds of spans, as opentelemetry.trace.SpanKind numbers them."""
UNSET, ERROR = 0, 2
"""Their states, as opentelemetry.trace.StatusCode numbers them."""

MOST = msgspec.Meta(max_length=1000)
"""How many attributes, events or links a span may have: a job may forge any number. The SDK's own limit is 128."""
Plain = bool | int | float | str | None
Attributes = Annotated[dict[str, Plain | Annotated[list[Plain], MOST]], MOST]
"""OpenTelemetry allows no other values. Encoding lists within lists may take a thousand times their size."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    name: str
    at_ns: int
    attributes: Attributes


class Link(msgspec.Struct, frozen=True, array_like=True):
    trace_id: bytes
    span_id: int
    attributes: Attributes


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A span that has ended. Trace ids are bytes, because msgpack has no integers of 128 bits."""

    name: str
    trace_id: bytes
    span_id: int
    parent_id: int | None
    state: str
    kind: int
    start_ns: int
    end_ns: int
    status: int = UNSET
    description: str | None = None
    attributes: Attributes = {}
    events: Annotated[list[Event], MOST] = []
    links: Annotated[list[Link], MOST] = []
    scope: tuple[str, str | None, str | None] = (SCOPE, None, None)
    parent_is_remote: bool = False


def of_attempt(
    job: Claimed, end: Ended, context: SpanContext, parent: SpanContext | None, *, start_ns: int, end_ns: int
) -> list[Span]:
    """The wait of a job and the run of this attempt: two spans, both below the one that enqueued the job."""
    start_ns = min(start_ns, end_ns)
    ready_ns = min(int(job.ready_at.timestamp() * 1e9), start_ns)
    trace_id, state = context.trace_id.to_bytes(16), context.trace_state.to_header()
    parent_id = None if parent is None else parent.span_id
    wait_id, attributes = span_of(job.id, job.attempt, "wait"), _of_job(job)
    wait = Span(f"wait {job.queue}", trace_id, wait_id, parent_id, state, INTERNAL, ready_ns, start_ns)
    run = Span(f"run {job.queue}", trace_id, context.span_id, parent_id, state, CONSUMER, start_ns, end_ns)
    wait = replace(wait, attributes=attributes, parent_is_remote=True)
    links = [] if parent_id is None else [Link(trace_id, parent_id, {})]
    run = replace(run, attributes=attributes | _of_run(end), links=links, parent_is_remote=True)
    if end.outcome in FAULTS:
        run = replace(run, status=ERROR, description=end.error, events=[_exception(end, end_ns)])
    return [wait, run]


def _of_job(job: Claimed) -> dict[str, Any]:
    found = {
        "messaging.system": "outlive",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.id),
        "outlive.task": job.task,
        "outlive.attempt": job.attempt,
        "outlive.source": job.source or None,
    }
    return _known(found)


def _of_run(end: Ended) -> dict[str, Any]:
    found = {
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "outlive.outcome": str(end.outcome),
        "error.type": _kind(end) if end.outcome in FAULTS else None,
        "outlive.signal": end.signal,
        "outlive.exit_code": end.exit_code if end.killed else None,
        "outlive.peak_memory_bytes": end.peak_memory_bytes,
        "outlive.cpu_s": end.cpu_s,
    }
    return _known(found)


def _kind(end: Ended) -> str:
    """The class of the exception, or the outcome of a process that has died."""
    kind = (end.error or "").partition(": ")[0]
    return kind if end.outcome is Outcome.FAILED and kind.isidentifier() else str(end.outcome)


def _exception(end: Ended, at_ns: int) -> Event:
    kind, message = _kind(end), end.error or ""
    message = message.removeprefix(kind).removeprefix(": ") if end.outcome is Outcome.FAILED else message
    found = {"exception.type": kind, "exception.message": message or None, "exception.stacktrace": end.stack}
    return Event("exception", at_ns, _known(found))


def _known(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value is not None}
