"""The data that the layers exchange: requests, claims, ends, and what people read.

Plain frozen structs, without any knowledge of the database or of processes. What a caller gets is a dataclass, which
FastAPI, pydantic and the standard library know.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from outlive.states import Outcome, State

ARGUMENTS_PART_BYTES = 1024 * 1024
"""A child asks for large arguments in parts of this size, so that the supervisor never holds many whole ones."""


def new_job_id() -> UUID:
    """A version 7 uuid. It starts with the local time, so that later ids sort later; no decision depends on that."""
    milliseconds, rest_ns = divmod(time.time_ns(), 1_000_000)
    first = milliseconds << 16 | 0x7000 | rest_ns * 4096 // 1_000_000
    last = int.from_bytes(os.urandom(8)) & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    return UUID(int=first << 64 | last)


class JobRequest(msgspec.Struct, frozen=True):
    """A job that a client enqueues. `args`, `options` and `links` are JSON already."""

    id: UUID
    task: str
    args: bytes
    queue: str | None = None
    source: str | None = None
    priority: int | None = None
    delay_s: float | None = None
    run_at: datetime | None = None
    dedupe_key: str | None = None
    on_conflict: str = "skip"
    options: bytes | None = None
    links: bytes | None = None
    """The jobs that it waits for, the batch that it belongs to, and its concurrency key."""


def as_json(job: JobRequest) -> bytes:
    """A job in the form in which the database takes it."""
    fields = {name: one for name, one in msgspec.structs.asdict(job).items() if one is not None}
    return msgspec.json.encode({k: msgspec.Raw(one) if isinstance(one, bytes) else one for k, one in fields.items()})


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """How many jobs a batch has, how many of them have ended in which way, and how many are left."""

    jobs: int
    """How many jobs it has."""
    succeeded: int
    """How many have succeeded."""
    failed: int
    """How many have failed for good."""
    cancelled: int
    """How many were cancelled."""
    quarantined: int
    """How many are in quarantine. A batch does not wait for them."""
    left: int
    """How many are unfinished."""
    done: bool
    """It is closed, and none is left."""

    @property
    def progress(self) -> float:
        """How many have ended, from 0 to 1."""
        return 1 - self.left / self.jobs if self.jobs else float(self.done)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The state of a job, and what it has last reported with `outlive.current().progress(…)`."""

    state: State
    """The state of the job."""
    attempt: int | None
    """The attempt that has reported; None if none has."""
    current: float | None
    """How much is done."""
    total: float | None
    """How much there is to do."""
    message: str | None
    """What it does now."""


class Lane(msgspec.Struct, frozen=True):
    """A lane and priority from which a claim may take jobs: from which ready_at on, and how many at most."""

    queue: str
    source: str
    task: str
    priority: int
    watermark: datetime | None = None
    quota: int = 512
    asks: bool = False
    """It has a source that must be asked before its jobs begin."""


class LaneState(msgspec.Struct, frozen=True):
    """A lane that has jobs, and when the first of them is or was ready."""

    queue: str
    source: str
    task: str
    priority: int
    ready_at: datetime
    ready: bool
    admits_all: bool = False
    """Its source need not be asked."""


class Unsourced(msgspec.Struct, frozen=True):
    """The lanes without a source, whether a suspect waits for an idle worker, and the queues that are paused."""

    lanes: list[LaneState]
    suspect_waits: bool
    paused: frozenset[str] = frozenset()


class Sourced(msgspec.Struct, frozen=True):
    """One page of the lanes with a source: the open lanes, when to ask the other sources again, and where it ends."""

    lanes: list[LaneState]
    waits_s: dict[str, float]
    reached: tuple[str, str] | None
    """The last queue and source of this page; None if no source follows."""


class Claimed(msgspec.Struct, frozen=True, gc=False):  # Many live at once, and none is part of a cycle.
    """A job that this worker may run now. The token is the right to end the attempt."""

    token: int
    id: UUID
    attempt: int
    queue: str
    source: str
    task: str
    priority: int
    ready_at: datetime
    failures: int
    crashes: int
    losses: int
    args: bytes | None
    """None: they are large, and the job's process fetches them in parts."""
    options: bytes | None
    alone_s: float = 0.0
    """How long no other job may run in this worker; 0 except for suspects."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended, as its worker reports it."""

    token: int
    outcome: Outcome = Outcome.SUCCEEDED
    error: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    peak_memory_bytes: int | None = None
    cpu_s: float | None = None
    output: str | None = None
    stack: str | None = None
    result: bytes | None = None
    killed: bool = False
    """Its process was killed or has died, rather than that its code has failed."""
    final: bool = False
    after_s: float | None = None
    source_ok: bool | None = None
    """Whether the source answered well; None if that is not known."""
    records: bytes | None = None
    spawns: bytes | None = None
    took_s: float | None = None
    """How long it ran; None if that is not known: then it counts from the claim."""
    late_s: float = 0.0
    """How long ago it ended."""
    told: bool = False
    """The job's process has reported it to Sentry."""
    memory: bytes | None = None
    """A `MemoryCourse` as JSON, if it is worth keeping."""
    restart: bytes | None = None
    """The arguments with which the job begins again."""

    @property
    def plain(self) -> bool:
        """Whether the statement that ends many attempts at once can write it."""
        return self.records is None and self.spawns is None and self.restart is None


class LostRun(msgspec.Struct, frozen=True):
    """An attempt that was lost, when it was claimed, and when the reaper ended it. It has no arguments."""

    job: Claimed
    end: Ended
    started_at: datetime
    ended_at: datetime


class Turn(msgspec.Struct, frozen=True):
    """What one end-and-claim gives: jobs, the tokens of refused ends, and when to ask sources again that admit none."""

    claimed: list[Claimed]
    refused: list[int]
    waits_s: dict[str, float]


class Grant(msgspec.Struct, frozen=True):
    """A source's answer to one request: granted, or how long to wait, and whether its breaker is the reason."""

    granted: bool
    wait_s: float
    open: bool
    slot: int | None


class SourceLimits(msgspec.Struct, frozen=True):
    """The limits of a source, as its app declares them."""

    name: str
    rate_limit_per_minute: float | None = None
    burst: int = 1
    max_concurrency: int | None = None
    breaker_failures: int = 5
    breaker_pause_s: float = 300.0


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as its app declares it. Either `cron` or `every_s` is given. `args` is JSON."""

    name: str
    task: str
    args: bytes
    cron: str | None = None
    every_s: float | None = None
    timezone: str = "UTC"
    missed: str = "once"
    overlap: str = "queue"
    jitter_s: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    queue: str | None = None
    priority: int | None = None
    was: tuple[str, ...] = ()
    """Names that it had before: the first of these that exists is renamed, with all that operators have changed."""


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules that an app's declaration has withdrawn, taken over from another app, or left to the operator."""

    withdrawn: list[str] = []
    taken: list[str] = []
    refused: list[str] = []


class DueSchedule(msgspec.Struct, frozen=True):
    """A schedule that is due at `next_at`; None: that must be computed first, from `changed_at` on."""

    name: str
    cron: str | None
    every_s: float | None
    timezone: str
    missed: str
    starts_at: datetime | None
    ends_at: datetime | None
    next_at: datetime | None
    changed_at: datetime
    trouble: str | None


class DueSchedules(msgspec.Struct, frozen=True):
    """The schedules that are due now, and when the next of the others is."""

    now: datetime
    upcoming: datetime | None
    due: list[DueSchedule]


class Fired(msgspec.Struct, frozen=True):
    """How many jobs a firing has made, and the unfinished job because of which it was skipped."""

    jobs: int
    busy: UUID | None


@dataclass(frozen=True, slots=True)
class Record:
    """A record that a job has stored. Scope, source and key together identify it."""

    scope: str
    """The kind of finding, as the job names it."""
    source: str
    """The source of the job; empty if it has none."""
    dedupe_key: str
    """What identifies the finding."""
    data: Any
    """The finding, as JSON; its text, if it is nested too deeply or has numbers too large to be read."""
    strength: float
    """How much the finding is worth: a stronger one replaces it."""
    job_id: UUID
    """The job that stored it last."""
    created_at: datetime
    """When it was first stored."""
    updated_at: datetime
    """When it was last replaced."""


class MemoryCourse(msgspec.Struct, frozen=True):
    """How the memory of an attempt's processes changed. With a limit, it is counted as the limit counts it."""

    limit_bytes: int | None
    """Its limit; None if it had none."""
    at_s: list[float]
    """When each step began, in seconds after the attempt."""
    used_bytes: list[int]
    """The most that was measured in each step."""


class Attempt(msgspec.Struct, frozen=True):
    """One ended attempt, as people see it. A field is empty, `None`, if it does not apply or is not known."""

    attempt: int
    """Its number, from 1."""
    outcome: Outcome
    """How it ended."""
    error: str | None
    """Why it did not succeed: `ValueError: no price`."""
    exit_code: int | None
    """The exit code of its process."""
    signal: str | None
    """The signal that killed its process, such as `SIGSEGV`."""
    peak_memory_bytes: int | None
    """The most memory that its processes used together."""
    cpu_s: float | None
    """The CPU time that it took."""
    output: str | None
    """The end of what it has printed and logged."""
    stack: str | None
    """The traceback of its exception, or where its code was when it was stopped or killed, coroutines included."""
    worker: str | None
    """The name of its worker."""
    hostname: str | None
    """The machine of its worker."""
    started_at: datetime | None
    """When it was claimed."""
    ended_at: datetime
    """When its end was written."""
    result: msgspec.Raw | None = None
    """What it returned, as JSON."""
    memory: MemoryCourse | None = None
    """How its memory has changed."""


class JobOutcome(msgspec.Struct, frozen=True):
    """What became of a job: its state, and its last attempt that has ended."""

    task: str
    state: State
    attempt: Attempt | None


class Change(msgspec.Struct, frozen=True):
    """What an operator's verb did to one job, or why it did nothing."""

    id: UUID
    state: str
    changed: bool
    note: str | None


class Lost(msgspec.Struct, frozen=True):
    """An attempt that the reaper ended, and the worker that held it."""

    token: int
    id: UUID
    task: str | None
    worker: UUID
    worker_name: str | None
    state: str | None
    """None: it can't end now, because another transaction has locked what its end needs."""


class Dead(msgspec.Struct, frozen=True):
    """A worker that was declared dead, and how many attempts it had."""

    id: UUID
    name: str
    hostname: str
    pid: int
    last_seen: datetime
    why: str
    running: int
