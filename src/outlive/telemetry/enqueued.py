"""What the span of an enqueue says about its jobs, for OpenTelemetry and for Sentry. This needs no library."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from outlive.model import JobRequest
from outlive.policy import DEFAULT_QUEUE

Carry = Callable[[list[JobRequest]], list[JobRequest]]
"""Gives jobs the trace context that is current."""


class Enqueued:
    """The jobs of one enqueue, which come in portions if they are many."""

    def __init__(self) -> None:
        self._queues: set[str] = set()
        self._tasks: set[str] = set()
        self._first: UUID | None = None
        self._count = 0

    def add(self, requests: list[JobRequest]) -> None:
        if requests:
            self._queues.update(one.queue or DEFAULT_QUEUE for one in requests)
            self._tasks.update(one.task for one in requests)
            self._first, self._count = requests[0].id, self._count + len(requests)

    @property
    def queue(self) -> str | None:
        """The queue of all jobs; None if they go to several."""
        return next(iter(self._queues)) if len(self._queues) == 1 else None

    @property
    def task(self) -> str | None:
        """The task of all jobs; None if they have several."""
        return next(iter(self._tasks)) if len(self._tasks) == 1 else None

    def attributes(self) -> dict[str, str | int]:
        """By the conventions for messaging, which both libraries follow."""
        found: dict[str, str | int] = {}
        if self.queue is not None:
            found["messaging.destination.name"] = self.queue
        if self.task is not None:
            found["outlive.task"] = self.task
        if self._count == 1:
            found["messaging.message.id"] = str(self._first)
        else:
            found["messaging.batch.message_count"] = self._count
        return found
