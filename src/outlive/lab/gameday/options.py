"""What a game was asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlive.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What must hold of the times, besides everything else."""

    worker_death_s: float = 2.0
    """From a worker's death until the jobs that it ran can be claimed again, p99."""
    zygote_death_s: float = 2.0
    """The same for a zygote."""
    child_death_s: float = 0.1
    """From a child's death until that is in the database, p99."""
    orphans_s: float = 2.0
    """How long children may survive their supervisor."""
    any_death_s: float = 30.0
    """The longest that any death may take to be noticed, also while the database is away or all workers are dead."""
    on_end_s: float = 20.0
    """The same, counted only while the database is there without a break: 15 s for a worker that died with it, and some
    for others to start."""
    drain_s: float = 60.0
    """How long after the last fault everything may take to be finished."""


BUSY = Bounds(
    worker_death_s=20.0,
    zygote_death_s=20.0,
    child_death_s=1.0,
    orphans_s=20.0,
    any_death_s=60.0,
    on_end_s=30.0,
    drain_s=120.0,
)
"""For a machine that has other work: what is slow there need not be slow here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How many kills (or for how long), how fast, by which random numbers, against how many workers."""

    seed: int
    kills: int = 200
    minutes: float | None = None
    """If given, it ends the game, and not the number of kills."""
    rate: float = 2.5
    """Faults a second."""
    workers: int = 3
    slots: int = 4
    json: bool = False
    report: Path | None = None
    force: bool = False
    """Play also in a database that has other jobs."""
    bounds: Bounds = Bounds()


def check(asked: Asked) -> None:
    """Refuse with a sentence what can't be played."""
    for name, value, least, most in (
        ("--kills", asked.kills, 1, 1_000_000),
        ("--workers", asked.workers, 2, 50),  # One that dies, and one that notices.
        ("--slots", asked.slots, 1, 100),
        ("--seed", asked.seed, 0, 2**63),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}: it must be from {least} to {most}")
    if not 0 < asked.rate <= 100:
        raise ConfigError(f"--rate is {asked.rate:g}: it must be more than 0 and at most 100 faults a second")
    if asked.minutes is not None and not asked.minutes > 0:
        raise ConfigError(f"--minutes is {asked.minutes:g}: it must be more than 0")
    if asked.report is not None and asked.report.exists() and not asked.report.is_dir():
        raise ConfigError(f"--report is {asked.report}, which is not a directory")
