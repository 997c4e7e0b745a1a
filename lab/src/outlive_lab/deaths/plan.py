"""What the seed determines: how each worker lives and dies, what each client enqueues, and which answers it loses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from outlive.config import Config
from outlive.model import Lane, SourceLimits
from outlive.policy import TaskRow

CONFIG = Config(heartbeat_s=1.0, stale_s=2.0, dead_s=4.0, lease_s=6.0, renew_s=1.0, sweep_s=2.0)
"""Virtual workers show life every second, so that silence is noticed in seconds and not in minutes."""
QUEUE, SOURCE, PRIORITY = "deaths", "deaths", 5


class Fate(StrEnum):
    SOCKET = "socket closed"
    POOLED = "session reset by a pooler"
    BACKEND = "session terminated"
    CUT = "cut in a statement"
    SHOT = "terminated in a statement"
    OPEN = "cut in a job's transaction"
    COMMIT = "cut at a commit"
    TOLD = "told to stop, then killed"
    UNBORN = "killed before it shows life"
    LATE = "lock lost, writes on"
    FROZEN = "frozen in a statement"
    FROZEN_OPEN = "frozen in a job's transaction"
    BY_JOB = "killed by its job"
    WATCHER = "watcher killed"
    STOPS = "stops by itself"


SILENT = {Fate.UNBORN, Fate.FROZEN, Fate.FROZEN_OPEN}
"""No lock tells of these deaths: only the heartbeat is missing."""

FATES = {
    Fate.SOCKET: 20,
    Fate.POOLED: 50,
    Fate.BACKEND: 5,
    Fate.CUT: 3,
    Fate.SHOT: 1,
    Fate.OPEN: 2,
    Fate.COMMIT: 2,
    Fate.TOLD: 4,
    Fate.UNBORN: 5,
    Fate.LATE: 3,
    Fate.FROZEN: 1,
    Fate.FROZEN_OPEN: 1,
    Fate.WATCHER: 0.2,
    Fate.STOPS: 2.8,
}
"""How many of a hundred workers die in which way, apart from those that a job kills. A death that ends a session that
runs statements costs the server as much as ten others, because the next one plans all statements again."""


class Incident(StrEnum):
    """What a worker survives."""

    RECONNECTS = "session terminated, locks again"
    RECONCILES = "answer lost, reads what it has"


@dataclass(frozen=True, slots=True)
class Plan:
    """The life of one worker."""

    fate: Fate
    turns: int
    """How often it ends jobs and claims others, before it dies."""
    slots: int
    queued: bool
    """Its jobs wait behind others for a moment: until their code begins, a death costs them nothing."""
    pause_s: float
    incident: Incident | None
    seed: float
    """For what it decides at each turn."""


def lives(seed: str) -> Iterator[Plan]:
    rng = random.Random(f"{seed} lives")
    while True:
        fate = rng.choices(list(FATES), list(FATES.values()))[0]
        incident = rng.choice(list(Incident)) if rng.random() < 0.02 else None
        turns, slots, queued = rng.choice((1, 1, 2)), rng.randint(1, 4), rng.random() < 0.3
        yield Plan(fate, turns, slots, queued, rng.choice((0.0, 0.0, 0.005, 0.02)), incident, rng.random())


class Kind(StrEnum):
    """The task of a job says what its virtual code does."""

    PLAIN = "plain"
    FAILING = "fails_once"
    KEYED = "keyed"
    SOURCED = "sourced"
    EFFECT = "effect"
    SPAWNER = "spawns"
    SLEEPER = "sleeps"
    CRASHER = "crashes"
    SLAYER = "slays"
    FATAL = "slays_and_fails"
    KILLER = "kills"


JOBS = {
    Kind.PLAIN: 40,
    Kind.FAILING: 8,
    Kind.KEYED: 8,
    Kind.SOURCED: 6,
    Kind.EFFECT: 14,
    Kind.SPAWNER: 6,
    Kind.SLEEPER: 6,
    Kind.CRASHER: 2,
    Kind.SLAYER: 2,
    Kind.FATAL: 2,
}
SLAYERS = {Kind.SLAYER, Kind.FATAL, Kind.KILLER}
"""Their code kills the worker each time."""
MAX_LOSSES, MAX_CRASHES = 3, 3
SOURCES = [SourceLimits(SOURCE, max_concurrency=8)]
UNSOURCED = [Lane(QUEUE, "", kind, PRIORITY) for kind in Kind if kind is not Kind.SOURCED]
SOURCED = [Lane(QUEUE, SOURCE, Kind.SOURCED, PRIORITY, asks=True)]


def tasks() -> list[TaskRow]:
    """The limits of all tasks: those that most jobs have, except that a retry waits for a moment only, and that one
    death is proof against a slayer, because in a storm of deaths no other proof comes soon. The trial of a killer is in
    the calm after it."""
    return [
        TaskRow(
            name=kind,
            queue=QUEUE,
            source=SOURCE if kind is Kind.SOURCED else "",
            max_attempts=5,
            max_crashes=MAX_CRASHES,
            max_losses=1 if kind is Kind.SLAYER else MAX_LOSSES,
            on_worker_death="fail" if kind is Kind.FATAL else "retry",
            quarantine_by="job",
            backoff_s=(0.05,),
        )
        for kind in Kind
    ]


class Trouble(StrEnum):
    """What happens to a client while it enqueues."""

    NONE = "answered"
    CUT = "answer lost"
    SHOT = "session terminated"
    ROLLED_BACK = "rolled back"
    REFUSED = "commit failed"


TROUBLES = {Trouble.NONE: 70, Trouble.CUT: 12, Trouble.SHOT: 6, Trouble.ROLLED_BACK: 6, Trouble.REFUSED: 6}


@dataclass(frozen=True, slots=True)
class Order:
    """What a client enqueues in one call."""

    kinds: list[Kind]
    trouble: Trouble
    shape: str
    """`apart`, `chain` (each after the one before), `batch`, or `deduped`: one job, asked for again by its key."""
    seed: float


def orders(seed: str) -> Iterator[Order]:
    rng = random.Random(f"{seed} orders")
    while True:
        shape = rng.choices(("apart", "chain", "batch", "deduped"), (60, 15, 10, 15))[0]
        count = 1 if shape == "deduped" else rng.randint(2, 12)
        # A chain and a batch wait for all their jobs, and quarantine would block them.
        safe = [kind for kind in JOBS if shape == "apart" or kind not in SLAYERS | {Kind.CRASHER, Kind.KEYED}]
        kinds = rng.choices(safe, [JOBS[kind] for kind in safe], k=count)
        yield Order(kinds, rng.choices(list(TROUBLES), list(TROUBLES.values()))[0], shape, rng.random())


TRIAL = Order([Kind.KILLER] + 11 * [Kind.PLAIN], Trouble.NONE, "apart", 0.0)
"""A job that kills each of its workers, among others that don't."""
