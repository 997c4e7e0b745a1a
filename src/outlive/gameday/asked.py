"""What a game was asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What must hold of the times, besides everything else."""

    worker_death_s: float = 2.0
    """From a worker's death until the jobs that it ran can be claimed again, p99."""
    child_death_s: float = 0.1
    """From a child's death until that is in the database, p99."""
    orphans_s: float = 2.0
    """How long children may survive their supervisor."""
    drain_s: float = 60.0
    """How long after the last fault everything may take to be finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How many kills (or for how long), how fast, by which random numbers, against how many workers."""

    seed: int
    kills: int = 200
    minutes: float | None = None
    """If given, it ends the game, and not the number of kills."""
    rate: float = 3.0
    """Faults a second."""
    workers: int = 3
    slots: int = 4
    json: bool = False
    report: Path | None = None
    force: bool = False
    """Play also in a database that has other jobs."""
    bounds: Bounds = Bounds()
