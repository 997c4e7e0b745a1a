"""The spans of attempts: the supervisor makes them, so that an attempt whose process dies has its span too.

A thread sends them. The ids follow from the job's (`telemetry/carried.py`), so the child knows them too.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from outlive.model import Claimed, Ended, LostRun
from outlive.states import Outcome
from outlive.telemetry import carried, contexts, spans
from outlive.telemetry.background import Background
from outlive.telemetry.otlp import Otlp

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

RELAYED_SHARE = 0.5
"""How much of the room for spans those of jobs may fill. A job that makes too many takes no room from attempts."""
MAX_BEGUN = 100_000
"""More attempts than a worker ever has at a time."""


class Begun(NamedTuple):
    context: SpanContext
    """The attempt's own span."""
    parent: SpanContext | None
    """The span that has enqueued the job."""
    at: float


class Tracing:
    def __init__(self) -> None:
        self._otlp = Otlp()
        self._begun: dict[int, Begun] = {}
        self._background: Background[spans.Span | bytes] = Background("spans", self._otlp.send, _size)

    def begin(self, job: Claimed) -> tuple[str, str]:
        """The job goes to a child: the context of its run, below which the child's own spans are."""
        begun = self._begin(job)
        if begun.context.trace_flags.sampled:
            self._begun[job.token] = begun
            if len(self._begun) > MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
        return contexts.headers(begun.context)

    def _begin(self, job: Claimed) -> Begun:
        parent = contexts.carried_by(job.options)
        trace_id = carried.trace_of(job.id) if parent is None else parent.trace_id
        sampled = self._otlp.samples(trace_id, parent, f"run {job.queue}")
        context = contexts.of_attempt(job.id, job.attempt, trace_id, parent, sampled=sampled)
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


def _ns(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)


def _size(one: spans.Span | bytes) -> int:
    if isinstance(one, bytes):
        return len(one)
    return sum(len(str(value)) for event in one.events for value in event.attributes.values())  # A stack may be long.
