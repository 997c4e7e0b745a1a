"""An attempt on its way through a slot, with its limits, and what the supervisor decides about it."""

from __future__ import annotations

import time
from typing import NamedTuple, TypedDict

import msgspec

from outlive.model import Claimed
from outlive.policy import TaskRow
from outlive.states import Outcome
from outlive.worker.limits.memory import MemorySeries
from outlive.worker.processes.job_output import JobOutput


class Verdict(NamedTuple):
    """The supervisor's decision to end an attempt, and why."""

    outcome: Outcome
    error: str
    again_s: float | None = None
    """After how many seconds the job may begin again, if it is released."""


LEASE_LOST = Verdict(Outcome.RELEASED, "its lease could not be renewed in time")
GIVEN_UP = Verdict(Outcome.LOST, "given up by others")


class Assignment(msgspec.Struct, eq=False, gc=False):
    """An attempt on its way through a slot."""

    job: Claimed
    facts: TaskRow
    timeout_s: float | None
    stall_s: float | None
    memory_bytes: int | None
    max_attempts: int | None
    """Its own; None: that of its task."""
    kept: bytes | None
    """What earlier attempts have kept, as `Run` (protocol.py) has it."""
    marked: bool
    """The database has it as begun: it was claimed for a free slot, or was marked since."""
    alone: bool = False
    """A suspect: no other job may run in this worker until the database has recorded that one does."""
    crowd: int = 1
    """How many jobs may run at once in its process. Fewer than its task says, if it may be what has killed one."""
    taken: float = msgspec.field(default_factory=time.monotonic)
    waits_until: float = 0.0
    """When it is released if no child has taken it."""
    started: float = 0.0
    """By the monotonic clock, like `taken` and `waits_until`."""
    counted_from: float = 0.0
    """When it began and when it last moved, by running time: limits are judged by that."""
    moved: float = 0.0
    begun: bool = False
    imported: bool = False
    """With `preload=False`: its own interpreter has imported the app."""
    steps: int = 0
    steps_bytes: int = 0
    """How many steps it has sent in this attempt, and how much that was."""
    completing: bool = False
    suspending: bool = False
    """The database is asked to let it wait."""
    verdict: Verdict | None = None
    """Only `decide` sets it."""
    term_sent: float | None = None
    """By running time."""
    peak_bytes: int = 0
    base_bytes: int = 0
    """The memory of its child when it began."""
    begun_at: float = 0.0
    """Wall-clock time, which files are stamped with."""
    trace: tuple[str, str] | None = None
    """The context of its span, if it has one."""
    kills_before: int = 0
    """How many processes of its child the kernel had killed for lack of memory before it began."""
    series: MemorySeries | None = None
    """None until its memory is measured."""
    output: JobOutput | None = None
    """What it has printed, if it shares its process."""
    stack: str | None = None
    """Where it was when it was told to end, if it shares its process."""
    grown_bytes: int = 0
    """How much its process has grown while its code ran, if it shares that: at the moments when this was looked at."""

    def decide(self, verdict: Verdict) -> None:
        """Decide how it ends. The first decision stays, unless the lease is lost: then it is charged with nothing."""
        if self.verdict is None or verdict is LEASE_LOST:
            self.verdict = verdict

    @property
    def shares(self) -> bool:
        return self.crowd > 1

    @property
    def apart(self) -> bool:
        """Its task shares processes, and it has one of its own."""
        return self.facts.share > 1 and self.crowd == 1

    @property
    def decisive(self) -> bool:
        """Whether a failure ends the job: no attempt is left. In SQL, outlive.verdict decides it."""
        return self.job.failures + 1 >= (self.max_attempts or self.facts.max_attempts)

    @property
    def may_be_over(self) -> bool:
        """Its attempt may have ended in the database without this worker's end."""
        return self.completing or self.suspending

    def is_final(self, outcome: Outcome) -> bool:
        """Whether this outcome, which its worker has found, forbids a retry."""
        return outcome is Outcome.TIMED_OUT and not self.facts.retries_timeouts

    def memory(self, outcome: Outcome, took_s: float) -> bytes | None:
        """How its memory changed, if that is worth keeping."""
        return None if self.series is None else self.series.kept(outcome, took_s, self.memory_bytes)


class _Limits(TypedDict, total=False):
    """The limits of a task, or those that a job has in place of them. None means no limit."""

    timeout_s: float | None
    stall_s: float | None
    memory_bytes: int | None
    max_attempts: int | None


def assignment(job: Claimed, facts: TaskRow, kept: bytes | None, *, marked: bool) -> Assignment:
    limits = _Limits(
        timeout_s=facts.timeout_s, stall_s=facts.stall_s, memory_bytes=facts.memory_bytes, max_attempts=None
    )
    if job.options is not None:
        limits.update(msgspec.json.decode(job.options, type=_Limits))
    begun = marked or job.attempt > 1  # The database always has a second attempt as begun.
    alone = job.alone_s > 0
    crowd = 1 if job.crashes else facts.share
    return Assignment(job, facts, kept=kept, marked=begun, alone=alone, crowd=crowd, **limits)
