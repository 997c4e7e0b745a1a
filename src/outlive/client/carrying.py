"""What jobs carry besides their arguments: the trace in which they are enqueued, and the baggage of their caller."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from outlive import job_gateway, luggage
from outlive.config import Config
from outlive.model import JobRequest

if TYPE_CHECKING:
    from outlive.caller_connections import AnyConnection
    from outlive.telemetry.enqueued import Carry

_UNTRACED: AbstractContextManager[Carry] = nullcontext(list)


def enqueuing(config: Config, connection: AnyConnection | None) -> AbstractContextManager[Carry]:
    """A span of OpenTelemetry around an enqueue, or the trace of Sentry, and what lets jobs carry it."""
    if config.otel:
        from outlive.telemetry import producing  # Not at the top: its library is optional.

        return producing.enqueuing(config.database_url if connection is None else None)
    carry = partial(loaded, config)
    if config.sentry:
        from outlive.telemetry import publishing

        return publishing.enqueuing(carry)
    carries = job_gateway.gateway is not None or job_gateway.baggage.get()
    return nullcontext(carry) if carries else _UNTRACED


def loaded(config: Config, requests: list[JobRequest]) -> list[JobRequest]:
    """The same jobs with the baggage and the trace context of now."""
    if not (config.otel or config.sentry):
        return luggage.loaded(requests)
    from outlive.telemetry import carried

    return carried.carrying(requests, otel=config.otel)
