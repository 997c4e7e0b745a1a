"""The span of Sentry around an enqueue, in the transaction of a request or a job. Without one there is no span.

Sentry's SDK is asked only if the process has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from outlive.model import JobRequest
from outlive.telemetry.enqueued import Carry, Enqueued


@contextmanager
def enqueuing(carry: Carry) -> Iterator[Carry]:
    """Jobs that go through the function that this yields carry the context of the span."""
    sdk = sys.modules.get("sentry_sdk")
    if sdk is None or sdk.get_current_span() is None:
        yield carry
        return
    enqueued = Enqueued()

    def counted(requests: list[JobRequest]) -> list[JobRequest]:
        enqueued.add(requests)
        return carry(requests)

    with sdk.start_span(op="queue.publish", name="enqueue", origin="auto.queue.outlive") as span:
        try:
            yield counted
        finally:
            span.description = enqueued.task or "enqueue"
            for name, value in enqueued.attributes().items():
                span.set_data(name, value)
