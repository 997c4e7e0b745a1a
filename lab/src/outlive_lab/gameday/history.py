"""What a game saw, and what the database holds after it. Plain data, without judgement.

All times are seconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from outlive_lab.gameday.machine import Machine


class Answer(StrEnum):
    """The answer that a client got when it enqueued a job."""

    OK = "ok"
    """The job exists, and must never be lost."""
    UNKNOWN = "unknown"
    """The database did not answer: the job may exist or not."""
    REFUSED = "refused"
    """The job must not exist."""


class Links(msgspec.Struct, frozen=True):
    """How a job is connected with others."""

    after: tuple[UUID, ...] = ()
    """The jobs that it waits for."""
    on_failure: str = "block"
    batch: UUID | None = None
    key: str | None = None
    concurrency: int = 1
    """How many jobs of its key may run at a time. In a game it is the same for all jobs of a key."""


UNLINKED = Links()


@dataclass(frozen=True, slots=True)
class Ask:
    id: UUID
    answer: Answer
    at_s: float = 0.0
    """When the client got the answer."""
    links: Links = UNLINKED


@dataclass(slots=True, kw_only=True)
class AskedBatch:
    """A batch with three callbacks."""

    id: UUID
    cancelled: bool = False
    """Its client cancels it, so its jobs may be cancelled."""
    answer: Answer = Answer.UNKNOWN
    """OK: it is closed."""
    at_s: float = 0.0


class Kind(StrEnum):
    """The faults."""

    CHILD = "child killed at work"
    SHARED = "shared child killed"
    SPARE = "spare child killed"
    ZYGOTE = "zygote killed"
    SUPERVISOR = "supervisor killed"
    HEAD = "supervisor and zygote killed"
    TREE = "whole tree killed"
    EVERYBODY = "all workers killed"
    REVIVAL = "zygote killed, bad import"
    DEPLOY = "deploy, killed before its grace"
    STOP = "whole tree told to stop"
    RELOAD = "reloaded"
    FREEZE = "supervisor frozen"
    OVERDUE = "supervisor frozen past its lease"
    PAUSE = "whole tree frozen past its lease"
    LOCK = "rows locked by a stranger"
    READ_ONLY = "database read-only"
    BACKEND = "session killed"
    RESTART = "Postgres restarted"
    OUTAGE = "database away past a lease"
    MACHINE = "whole machine frozen"
    OOM = "zygote killed by the kernel"
    CROWD = "failure with 20,000 dependents"
    QUEUE = "queue paused"
    SWITCHOVER = "switchover"
    POSTMASTER = "primary's postmaster killed"
    NODE = "primary's node killed"
    FROZEN = "primary frozen, and back late"
    CUT_OFF = "primary cut off from etcd"


WORKER_KILLS = frozenset({Kind.SUPERVISOR, Kind.HEAD, Kind.TREE, Kind.EVERYBODY, Kind.DEPLOY})
"""The worker is dead."""
TOLD = frozenset({Kind.DEPLOY, Kind.STOP})
"""The worker was told to stop: its jobs are not charged for anything that happens later."""
ZYGOTE_KILLS = frozenset({Kind.ZYGOTE, Kind.REVIVAL, Kind.OOM})
LATE = frozenset({Kind.OVERDUE, Kind.PAUSE})
"""The worker is frozen until its leases are over, and wakes when other workers have its jobs."""
TAKEN_OVER = WORKER_KILLS | LATE
"""Other workers take over the jobs of the worker. The database can't know who did it, so it may charge them with a
loss. The death of a zygote, an outage or a frozen machine costs no job anything."""
FREEZES = LATE | {Kind.FREEZE}
FAILOVERS = (Kind.SWITCHOVER, Kind.POSTMASTER, Kind.NODE, Kind.FROZEN, Kind.CUT_OFF)
"""Faults of the primary of a highly available Postgres. Their `worker` is its node."""
KILLS = WORKER_KILLS | ZYGOTE_KILLS | {Kind.CHILD, Kind.SHARED, Kind.SPARE}
"""SIGKILLs of processes of a worker. The game counts these."""

GOODBYE_S = 2.0
"""About as long as a worker needs to reconnect after an outage."""
UNLOCK_S = 2.0
"""How long after a lock is released a write that waited for it may still be retried."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault, and the name of the worker that it hit. The game adds what it learns later."""

    kind: Kind
    at_s: float
    worker: str = ""
    pid: int = 0
    """The child or the zygote that was hit."""
    jobs: frozenset[UUID] = frozenset()
    """The jobs whose rows a foreign transaction has locked, or the one that fails and has many dependents."""
    lasted_s: float = 0.0
    """For how long the rows are locked, or the machine is frozen."""
    watched: bool = True
    """Another worker lived, and long enough to notice."""
    taken: frozenset[int] = frozenset()
    """Attempts that were frozen just before their completion until another worker had begun their jobs again."""
    orphans_gone_s: float | None = None
    """How long after the fault the last process below the supervisor was gone."""
    writable_s: float | None = None
    """When there was a primary again."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A worker that ended without being killed."""

    worker: str
    code: int
    at_s: float


@dataclass(slots=True)
class History:
    """What clients saw, which faults hit the workers, and how the game ended."""

    asks: list[Ask] = field(default_factory=list)
    batches: list[AskedBatch] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the database was away or read-only: start and end."""
    exits: list[Exit] = field(default_factory=list)
    short_leases: set[str] = field(default_factory=set)
    """Workers whose lease is so short that an outage may end it."""
    began_s: float = 0.0
    scheduled_s: float = 0.0
    """Until when the schedules fired."""
    quiet_s: float = 0.0
    """When all faults had stopped."""
    drain_s: float = 0.0
    """How long after the last fault the last job was finished, or the game stopped waiting."""
    stopped: bool = False
    """A signal asked the game to stop."""
    cut_short: bool = False
    """The game was stopped before all jobs were finished."""
    left_behind: list[str] = field(default_factory=list)
    """Processes that were still there when all workers were gone."""
    unburied: list[str] = field(default_factory=list)
    """Workers that were gone, and were not declared dead in the end."""
    left_over: list[tuple[str, str]] = field(default_factory=list)
    """What was still there when all jobs were finished, or when all workers were gone."""
    machine: Machine = field(default_factory=Machine)
    given_up: set[int] = field(default_factory=set)
    """Shared processes that their own workers have killed, because the leases of some of their jobs were too old."""
    reports_fenced: int = 0
    """How often a worker reported an attempt that it no longer owned."""

    @property
    def kills(self) -> int:
        return sum(fault.kind in KILLS for fault in self.faults)

    def taken(self) -> set[int]:
        """Attempts that woke just before their completion, when another worker had their jobs."""
        return {token for fault in self.faults for token in fault.taken}

    def told(self, worker: str, by_s: float) -> Fault | None:
        """The fault by which the worker was told to stop by this time, if it could tell the database.

        After a deploy while the database was away, the database sees only a worker that died.
        """
        told = [one for one in self.faults if one.kind in TOLD and one.worker == worker and one.at_s <= by_s]
        for one in told:
            away = self.away(one.at_s - GOODBYE_S, one.at_s + GOODBYE_S, margin_s=GOODBYE_S)
            if one.kind is not Kind.DEPLOY or not away:
                return one
        return None

    def locked(self, jobs: Collection[UUID], since_s: float, until_s: float) -> bool:
        """Whether a foreign transaction locked one of these jobs in this time, or until shortly before it."""
        return any(
            not one.jobs.isdisjoint(jobs) and one.at_s <= until_s and since_s <= one.at_s + one.lasted_s + UNLOCK_S
            for one in self.faults
        )

    def breaks(self) -> list[tuple[float, float]]:
        """When no worker could tell the database anything: it was away, or all workers were frozen. In order."""
        frozen = [(one.at_s, one.at_s + one.lasted_s) for one in self.faults if one.kind is Kind.MACHINE]
        return sorted([*self.outages, *frozen])

    def frozen(self, since_s: float, until_s: float, *, margin_s: float = 0.0) -> bool:
        """Whether all workers were frozen in this time, or until `margin_s` before it."""
        machine = [one for one in self.faults if one.kind is Kind.MACHINE]
        return any(one.at_s <= until_s and since_s <= one.at_s + one.lasted_s + margin_s for one in machine)

    def away(self, since_s: float, until_s: float, *, margin_s: float = 0.0) -> bool:
        """Whether the database was away in this time, or until `margin_s` before it."""
        return any(start <= until_s and since_s <= end + margin_s for start, end in self.outages)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of `attempts`. `ended_s` is the time of the commit, if the server records it. Of a success, or after a loss
    that was taken back, it is that of the statement."""

    job: UUID
    number: int
    token: int
    worker: str
    """Its name."""
    outcome: str
    state: str
    signal: str | None
    started_s: float | None
    ended_s: float
    failures: int
    crashes: int
    losses: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The row that a job writes when it begins."""

    token: int
    pid: int
    job: UUID
    at_s: float


@dataclass(frozen=True, slots=True)
class Effect:
    """The row that is a job's work."""

    job: UUID
    token: int
    spawned: UUID | None = None
    """A job that this one enqueued before it wrote the row."""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Callback:
    """A job that a batch has enqueued."""

    job: UUID
    batch: UUID
    event: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A job that a schedule has enqueued."""

    job: UUID
    schedule: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the code of a durable job was: it has `taken` or `passed` a step, or `waits` in one."""

    job: UUID
    token: int
    kind: str
    step: str
    value: object
    """What the step returned or, before a sleep, for how many seconds it is."""
    at_s: float
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A step in the database."""

    job: UUID
    step: str
    value: object
    at_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal, as the transaction that sent it has written it down too."""

    job: UUID
    value: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the tables hold after the last worker is gone."""

    jobs: Mapping[UUID, str]
    """Each job's task, without its module."""
    places: Sequence[tuple[UUID, str]]
    """The unfinished jobs, and where they are: waiting, running on a worker, or why they are held."""
    members: Mapping[UUID, UUID]
    """The batch of each job that is in one."""
    attempts: Sequence[Attempt]
    starts: Sequence[Start]
    effects: Sequence[Effect]
    fenced: Sequence[int]
    """Tokens whose `ctx.complete` came too late."""
    workers: Mapping[str, str]
    """The state of each worker, by its name."""
    callbacks: Sequence[Callback]
    ticks: Sequence[Tick]
    completing: Collection[str]
    """Tasks that complete in the transaction of their effect."""
    fates: Mapping[str, str]
    """How the jobs of some tasks end. Those of all others succeed."""
    schedules: Collection[str]
    marks: Sequence[Mark] = ()
    kept: Sequence[Kept] = ()
    sent: Sequence[Sent] = ()
    ledger: Sequence[UUID] = ()
    """The jobs whose effect under `once` was made, each as often as it was."""
    sharing: Collection[str] = ()
    """Tasks whose jobs share processes. Jobs that harm theirs are named `task harm`."""
    lines: Sequence[Mapping[str, Any]] = ()
    """The history: see `journal`."""
    verified: Sequence[tuple[UUID, str]] = ()
    """What `outlive verify` finds wrong with which job."""
    mixed: Sequence[UUID] = ()
    """Those whose result or output is another job's."""
