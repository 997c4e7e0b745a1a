"""What slots report about attempts, passed on to the service that deals with it.

Slots know these methods and no service: a test may give them an object that only keeps the events.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from outlive.model import Claimed, Ended
from outlive.protocol import Call, Progress, Ready
from outlive.states import Outcome
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.child_reader import STEPS
from outlive.worker.processes.children import Child

if TYPE_CHECKING:
    from outlive.worker.services import Services


class AttemptEvents:
    def __init__(self, services: Services) -> None:
        self._services = services

    def starting(self, job: Claimed) -> tuple[str, str] | None:
        return self._services.telemetry.starting(job)

    def traced(self, spans: bytes) -> None:
        self._services.telemetry.traced(spans)

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None:
        services = self._services
        services.end_lines.add(job, end)
        if services.tallies is not None:
            services.tallies.ended(job, end)
        if not services.leases.disowned(end.token):  # Otherwise its reaper does it.
            services.telemetry.ended(job, end)
        services.outbox.sources.note(job.source, end)
        if completing:
            services.outbox.completions.expect(end)
        elif not services.progress.hold(end):
            services.outbox.put(end)

    def suspended(self, one: Assignment) -> None:
        services = self._services
        services.leases.drop(one.job.token)
        took_s = time.monotonic() - one.started
        services.telemetry.ended(one.job, Ended(one.job.token, Outcome.RELEASED, took_s=took_s))

    def called(self, child: Child, call: Call) -> None:
        if call.verb not in STEPS:
            self._services.calls.put(child, call)
            return
        if one := child.find(call.token):
            one.kept = None  # What came with it is out of date: if it begins again, its process fetches all.
        self._services.progress.keep(child, call)

    def owes_answer(self, child: Child, token: int) -> bool:
        """Whether this attempt has asked for something and has no answer yet."""
        return self._services.calls.asked(child, token) or self._services.progress.step_waits(token)

    def secret_of(self, token: int) -> str:
        return self._services.me.secret_of(token)

    def progressed(self, progress: Progress) -> None:
        self._services.progress.note(progress)

    def pending_bytes(self) -> int:
        """How much that jobs have sent is in memory and not written yet."""
        services = self._services
        ends = (*services.outbox.unwritten, *services.progress.held_ends, *services.outbox.completions.pending)
        parts = (part for end in ends for part in (end.result, end.records, end.spawns))
        written_later = sum(len(part) for part in parts if part is not None)
        return written_later + services.calls.pending_bytes + services.progress.pending_bytes

    def app_imported(self, served: Collection[str], ready: Ready) -> None:
        self._services.registration.app_imported(served, ready)
        self._services.wake.notify()

    def trouble_changed(self) -> None:
        self._services.heartbeat.hurry()

    def slot_freed(self) -> None:
        self._services.wake.set()
