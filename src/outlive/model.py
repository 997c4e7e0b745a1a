"""The data that travels between the layers: what is asked for, what was claimed, how it ended.

Plain frozen structs; nothing here knows the database, a process or a clock.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from outlive.states import Outcome


def new_job_id() -> UUID:
    """A version 7 uuid: it begins with the time of this clock, to a quarter of a microsecond, so later ids sort later.

    The order is a convenience of indexes and listings; nothing is decided by it.
    """
    milliseconds, rest_ns = divmod(time.time_ns(), 1_000_000)
    random = int.from_bytes(os.urandom(8))
    return UUID(int=milliseconds << 80 | 7 << 76 | rest_ns * 4096 // 1_000_000 << 64 | 2 << 62 | random & (1 << 62) - 1)


class JobRequest(msgspec.Struct, frozen=True):
    """One job as a client asks for it. `args` and `options` are JSON already."""

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


class Lane(msgspec.Struct, frozen=True):
    """A lane and priority offered to the claim: from which ready_at on, and how many at most."""

    queue: str
    source: str
    task: str
    priority: int
    mark: datetime | None = None
    quota: int = 512


class LaneState(msgspec.Struct, frozen=True):
    """A lane that has something, and since or from when."""

    queue: str
    source: str
    task: str
    priority: int
    ready_at: datetime
    ready: bool


class Sourced(msgspec.Struct, frozen=True):
    """A part of the lanes that have a source: those that are open, when to ask again at others, and how far it goes."""

    lanes: list[LaneState]
    waits_s: dict[str, float]
    reached: tuple[str, str] | None
    """The last queue and source of this part; None if no source is behind it."""


class Claimed(msgspec.Struct, frozen=True):
    """A job that this worker may run now: the token is its right to end it."""

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
    """None: they are large, and its process asks for them in parts."""
    options: bytes | None
    alone_s: float = 0.0
    """For how long nothing else may run in this worker; 0 for all but suspects."""


class Ended(msgspec.Struct, frozen=True):
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
    final: bool = False
    after_s: float | None = None
    source_ok: bool | None = None
    """What this says about its source; None if nothing."""
    records: bytes | None = None
    spawns: bytes | None = None


class Turn(msgspec.Struct, frozen=True):
    """What one end-and-claim gave: jobs to run, and tokens that were no longer ours."""

    claimed: list[Claimed]
    stale: list[int]


class Admitted(msgspec.Struct, frozen=True):
    """What the sources that were asked gave: jobs to run, and of those that gave none when to ask again."""

    claimed: list[Claimed]
    waits_s: dict[str, float]


class Grant(msgspec.Struct, frozen=True):
    """What a source says to one request: go, or how long to wait, and whether that is for its breaker."""

    granted: bool
    wait_s: float
    open: bool
    slot: int | None


class SourceLimits(msgspec.Struct, frozen=True):
    """The row of `sources` that a declaration becomes."""

    name: str
    rate_limit_per_minute: float | None = None
    burst: int = 1
    max_concurrency: int | None = None
    breaker_failures: int = 5
    breaker_pause_s: float = 300.0


class Record(msgspec.Struct, frozen=True):
    """Something that a job has found."""

    scope: str
    source: str
    dedupe_key: str
    data: Any
    strength: float
    job_id: UUID
    created_at: datetime
    updated_at: datetime


class Attempt(msgspec.Struct, frozen=True):
    """One ended attempt, as people see it."""

    attempt: int
    outcome: Outcome
    error: str | None
    exit_code: int | None
    signal: str | None
    peak_memory_bytes: int | None
    cpu_s: float | None
    output: str | None
    stack: str | None
    worker: str | None
    hostname: str | None
    started_at: datetime | None
    ended_at: datetime
    result: msgspec.Raw | None = None


class Change(msgspec.Struct, frozen=True):
    """What an operator's verb did to one job, and if nothing, why."""

    id: UUID
    state: str
    changed: bool
    note: str | None


class Lost(msgspec.Struct, frozen=True):
    """An attempt that the reaper ended, and who held it."""

    token: int
    id: UUID
    worker: UUID
    locked_by: str
    state: str


class Dead(msgspec.Struct, frozen=True):
    """A worker that was given up, and how many attempts it had."""

    id: UUID
    name: str
    hostname: str
    pid: int
    last_seen: datetime
    running: int
