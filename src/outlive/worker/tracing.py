"""The spans of attempts: the supervisor makes them, so that an attempt whose process dies has its span too.

A thread sends them. The ids follow from the job's (`telemetry/contexts.py`), so the child knows them too.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

from outlive.model import Claimed, Ended, LostRun
from outlive.states import Outcome
from outlive.telemetry import contexts, spans
from outlive.telemetry.background import Background
from outlive.telemetry.contexts import TraceContext

RELAYED_SHARE = 0.5
"""How much of the room for spans those of jobs may fill. A job that makes too many takes no room from attempts."""
MAX_BEGUN = 100_000
"""More attempts than a worker ever has at a time."""


class Begun(NamedTuple):
    context: TraceContext
    parent: TraceContext | None
    at: float


class Tracing:
    def __init__(self) -> None:
        """ConfigError: the library is not installed."""
        from outlive.telemetry.otlp import Otlp  # Here, because its library is optional.

        self._otlp = Otlp()
        self._begun: dict[int, Begun] = {}
        self._background: Background[spans.Span | bytes] = Background("spans", self._otlp.send, _size)

    def begin(self, job: Claimed) -> tuple[str, str]:
        """The job goes to a child: the context of its run, below which the child's own spans are."""
        context, parent = self._contexts_of(job)
        if context.sampled:
            self._begun[job.token] = Begun(context, parent, time.time())
            if len(self._begun) > MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
        return context.traceparent, context.state

    def _contexts_of(self, job: Claimed) -> tuple[TraceContext, TraceContext | None]:
        """The context of the attempt's span, and the one with which the job was enqueued."""
        parent = contexts.carried_by(job.options)
        trace_id = contexts.trace_of(job.id) if parent is None else parent.trace_id
        sampled = self._otlp.samples(trace_id, parent, f"run {job.queue}")
        state = "" if parent is None else parent.state
        return TraceContext(trace_id, contexts.span_of(job.id, job.attempt, "run"), sampled, state), parent

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
        context, parent = self._contexts_of(run.job)
        if context.sampled:
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
