"""The options of a game."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlive.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The times that a game must keep."""

    worker_death_s: float = 2.0
    """p99, from the death of a worker until its jobs can be claimed again."""
    zygote_death_s: float = 2.0
    """The same for a zygote."""
    child_death_s: float = 0.1
    """p99, from the death of a child until the database has it."""
    orphans_s: float = 2.0
    """How long children may survive their supervisor."""
    any_death_s: float = 30.0
    """The limit for each single death, even if the database is away or all workers are dead."""
    on_end_s: float = 20.0
    """The same limit while the database is there without a break: 15 s for a worker that died with it, and some
    seconds until other workers have started."""
    wake_s: float = 2.0
    """p99, from the end of a wait until its job begins again."""
    begin_s: float = 5.0
    """How long a job that can begin may wait when all faults have stopped, in time that the machine gave."""
    drain_s: float = 60.0
    """How long after the last fault all jobs must be finished."""
    flow_s: float = 3.0
    """From a new primary until a worker begins the first job there."""


BUSY = Bounds(
    worker_death_s=20,
    zygote_death_s=20,
    child_death_s=1,
    orphans_s=20,
    any_death_s=60,
    on_end_s=30,
    wake_s=20,
    drain_s=120,
    flow_s=10,
)
"""For a machine that has other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int
    kills: int = 200
    minutes: float | None = None
    """If it is given, the game ends after this time instead of a number of kills."""
    rate: float = 2.5
    """Faults per second."""
    workers: int = 3
    slots: int = 4
    json: bool = False
    report: Path | None = None
    ha: bool = False
    """Play on three nodes of Postgres under Patroni, and let their primaries fail."""
    force: bool = False
    """Play even in a database that has other jobs."""
    bounds: Bounds = Bounds()


def check(options: Options) -> None:
    """Raise a ConfigError for options that can't be played."""
    for name, value, least, most in (
        ("--kills", options.kills, 1, 1_000_000),
        ("--workers", options.workers, 2, 50),  # One dies, and one notices.
        ("--slots", options.slots, 1, 100),
        ("--seed", options.seed, 0, 2**63),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}: it must be from {least} to {most}")
    if not 0 < options.rate <= 100:
        raise ConfigError(f"--rate is {options.rate:g}: it must be more than 0 and at most 100 faults a second")
    if options.minutes is not None and not options.minutes > 0:
        raise ConfigError(f"--minutes is {options.minutes:g}: it must be more than 0")
    if options.report is not None and options.report.exists() and not options.report.is_dir():
        raise ConfigError(f"--report is {options.report}, which is not a directory")
