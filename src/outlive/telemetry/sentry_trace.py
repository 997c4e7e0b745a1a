"""The trace of Sentry that jobs carry from the client that enqueues them.

A process without its SDK, or with one that is not started, has no trace.
"""

from __future__ import annotations

import sys

from outlive.model import JobRequest
from outlive.telemetry import carried


def carrying(requests: list[JobRequest]) -> list[JobRequest]:
    """The same jobs with the trace that is current here."""
    sdk = sys.modules.get("sentry_sdk")
    if sdk is None or not sdk.get_client().is_active():
        return requests
    trace, span, *sampled = (sdk.get_traceparent() or "-").split("-")
    header = f"00-{trace}-{span}-{'00' if sampled == ['0'] else '01'}"
    return requests if carried.parts_of(header) is None else carried.carrying(requests, {"traceparent": header})
