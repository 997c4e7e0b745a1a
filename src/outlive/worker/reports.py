"""What slots report about attempts, passed on to the service that deals with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlive.metrics.tallies import Tallies
from outlive.model import Claimed, Ended, Schedule, SourceLimits
from outlive.protocol import Call, Progress, TaskFacts
from outlive.worker.child_reader import ChildReports
from outlive.worker.children import Child
from outlive.worker.completions import Completions
from outlive.worker.deferred_ends import EndEvents
from outlive.worker.end_lines import EndLines
from outlive.worker.heartbeat import Heartbeat
from outlive.worker.identity import Identity
from outlive.worker.job_calls import JobCalls
from outlive.worker.outbox import Outbox
from outlive.worker.progress import ProgressWriter
from outlive.worker.registration import Registration
from outlive.worker.sources import SourceOutcomes
from outlive.worker.telemetry import Telemetry
from outlive.worker.wakeup import Wakeup


class AttemptEvents(ChildReports, EndEvents, Protocol):
    """What slots report."""

    def starting(self, job: Claimed) -> tuple[str, str] | None: ...
    def slot_freed(self) -> None: ...
    def trouble_changed(self, trouble: str | None) -> None: ...
    def app_imported(
        self, tasks: Mapping[str, TaskFacts], sources: Sequence[SourceLimits], schedules: Sequence[Schedule]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class AttemptReports:
    me: Identity
    outbox: Outbox
    progress: ProgressWriter
    end_lines: EndLines
    completions: Completions
    calls: JobCalls
    sources: SourceOutcomes
    heartbeat: Heartbeat
    registration: Registration
    wake: Wakeup
    tallies: Tallies | None
    """None if no metrics are served."""
    telemetry: Telemetry | None
    """None without OpenTelemetry and Sentry."""

    def starting(self, job: Claimed) -> tuple[str, str] | None:
        return None if self.telemetry is None else self.telemetry.starting(job)

    def traced(self, spans: bytes) -> None:
        if self.telemetry is not None:
            self.telemetry.traced(spans)

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None:
        self.end_lines.add(job, end)
        if self.tallies is not None:
            self.tallies.ended(job, end)
        if self.telemetry is not None and not self.outbox.leases.disowned(end.token):  # Otherwise its reaper tells.
            self.telemetry.ended(job, end)
        self.sources.note(job.source, end)
        if completing:
            self.completions.expect(end)
        elif not self.progress.hold(end):
            self.outbox.put(end)

    def called(self, child: Child, call: Call) -> None:
        self.calls.put(child, call)

    def secret_of(self, token: int) -> str:
        return self.me.secret_of(token)

    def progressed(self, progress: Progress) -> None:
        self.progress.note(progress)

    def pending_bytes(self) -> int:
        """How much that jobs have sent is in memory and not written yet."""
        ends = (*self.outbox.unwritten, *self.progress.held_ends, *self.completions.pending)
        parts = (part for end in ends for part in (end.result, end.records, end.spawns))
        written_later = sum(len(part) for part in parts if part is not None)
        return written_later + self.progress.pending_bytes + self.calls.pending_bytes

    def app_imported(
        self, tasks: Mapping[str, TaskFacts], sources: Sequence[SourceLimits], schedules: Sequence[Schedule]
    ) -> None:
        self.registration.app_imported(tasks, sources, schedules)
        self.wake.notify()

    def trouble_changed(self, trouble: str | None) -> None:
        self.heartbeat.report_trouble(trouble)

    def slot_freed(self) -> None:
        self.wake.set()
