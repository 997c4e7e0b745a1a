"""What was seen in a game, and what was found in the database after it. Plain data; nothing is decided here.

All moments are seconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID


class Answer(StrEnum):
    """What a client heard when it asked for a job."""

    OK = "ok"
    """It is there, and must never be lost."""
    UNKNOWN = "unknown"
    """The database did not answer: it may be there or not."""
    REFUSED = "refused"
    """It must not be there."""


@dataclass(frozen=True, slots=True)
class Ask:
    id: UUID
    answer: Answer
    at_s: float = 0.0
    """When the client heard the answer."""


class Kind(StrEnum):
    """The faults."""

    CHILD = "child killed at work"
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


GOODBYE_S = 2.0
"""About as long as a worker takes to come back to a database that was away."""

UNLOCK_S = 2.0
"""How long after a lock is gone what waited for it may still be tried again."""

VANISHED = frozenset({Kind.SUPERVISOR, Kind.HEAD, Kind.TREE, Kind.EVERYBODY})
"""After these the worker is dead, and had no warning."""

WORKER_KILLS = VANISHED | {Kind.DEPLOY}
"""After these the worker is dead."""

TOLD = frozenset({Kind.DEPLOY, Kind.STOP})
"""The worker was told to stop: nothing that happens to its jobs after that counts."""

ZYGOTE_KILLS = frozenset({Kind.ZYGOTE, Kind.REVIVAL})
LATE = frozenset({Kind.OVERDUE, Kind.PAUSE})
"""The worker sleeps until its leases are over, and wakes when others have its jobs."""

KILLS = WORKER_KILLS | ZYGOTE_KILLS | {Kind.CHILD, Kind.SPARE}
"""SIGKILLs of processes of a worker: these are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: Kind
    at_s: float
    worker: str = ""
    """The name of the worker that was hit."""
    pid: int = 0
    """The child that was hit."""
    jobs: frozenset[UUID] = frozenset()
    """The jobs whose rows a stranger has locked."""
    lasted_s: float = 0.0
    """For how long."""
    watched: bool = True
    """Another worker was there, and stayed for long enough to notice."""
    taken: frozenset[int] = frozenset()
    """Attempts that slept just before their completion until another worker had begun their jobs again."""
    orphans_gone_s: float | None = None
    """How long after it the last process below the supervisor was gone."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A worker that ended without having been killed."""

    worker: str
    code: int
    at_s: float


@dataclass(slots=True)
class History:
    """What clients saw, what was done to the workers, and how it ended."""

    asks: list[Ask] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the database was away, from and to."""
    exits: list[Exit] = field(default_factory=list)
    short_leases: set[str] = field(default_factory=set)
    """Workers whose lease is so short that an outage may well end it."""
    began_s: float = 0.0
    drain_s: float = 0.0
    """How long after the last fault the last job was finished, or nobody waited any longer."""
    stopped: bool = False
    """Somebody asked it to stop."""
    cut_short: bool = False
    """And did not wait for the jobs to finish."""
    left_behind: list[str] = field(default_factory=list)
    """Processes that were still there when all workers had gone."""
    reports_fenced: int = 0
    """How often a worker came to report an attempt that was not its own any more."""

    @property
    def kills(self) -> int:
        return sum(fault.kind in KILLS for fault in self.faults)

    def taken(self) -> set[int]:
        """Attempts that woke just before their completion when another worker had their jobs."""
        return {token for fault in self.faults for token in fault.taken}

    def told(self, worker: str, by_s: float) -> bool:
        """Whether the worker had been told to stop by then, and could tell the database so."""
        told = (one for one in self.faults if one.kind in TOLD and one.worker == worker and one.at_s <= by_s)
        return any(not self.unheard(one) for one in told)

    def unheard(self, fault: Fault) -> bool:
        """Told to stop and killed soon after, while the database was away: that looks like a worker that has died."""
        since_s, until_s = fault.at_s - GOODBYE_S, fault.at_s + GOODBYE_S
        return fault.kind is Kind.DEPLOY and self.away(since_s, until_s, margin_s=GOODBYE_S)

    def locked(self, jobs: Collection[UUID], since_s: float, until_s: float) -> bool:
        """Whether a stranger had a row of one of these jobs locked at some time in between, or until shortly before."""
        return any(
            not one.jobs.isdisjoint(jobs) and one.at_s <= until_s and since_s <= one.at_s + one.lasted_s + UNLOCK_S
            for one in self.faults
        )

    def away(self, since_s: float, until_s: float, *, margin_s: float = 0.0) -> bool:
        """Whether the database was away at some time in between, or until shortly before."""
        return any(start <= until_s and since_s <= end + margin_s for start, end in self.outages)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of `attempts`; `ended_s` is when it was committed, where the server says that."""

    job: UUID
    number: int
    token: int
    worker: UUID | None
    outcome: str
    state: str
    signal: str | None
    started_s: float | None
    ended_s: float
    failures: int
    crashes: int
    losses: int


@dataclass(frozen=True, slots=True)
class Start:
    """What a job's code wrote first."""

    token: int
    pid: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What a job's code was there to do."""

    job: UUID
    token: int
    spawned: UUID | None = None
    """Another job, which was acknowledged before this was written."""


@dataclass(frozen=True, slots=True)
class Worker:
    id: UUID
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the tables hold after the last worker has gone."""

    jobs: dict[UUID, str]
    """Each job's task, without its module."""
    places: Sequence[tuple[UUID, str]] = ()
    """Jobs that are not finished, and where they are: waiting, running on a worker, held."""
    attempts: Sequence[Attempt] = ()
    starts: Sequence[Start] = ()
    effects: Sequence[Effect] = ()
    fenced: Sequence[int] = ()
    """Tokens that came too late for `ctx.complete`."""
    workers: Sequence[Worker] = ()
    completing: Collection[str] = ()
    """Tasks that end in the transaction of their effect."""
