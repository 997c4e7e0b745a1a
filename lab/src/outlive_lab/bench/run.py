"""One run of the bench: how much it measures, and how it takes samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from outlive_lab.bench.databases import Database
from outlive_lab.bench.figures import Figure
from outlive_lab.bench.processes import Probe, Processes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`seconds` is the length of one sample; a figure is the median of `samples`. The last ten are for workers."""

    seconds: float = 2.0
    samples: int = 3
    backlog: int = 1_000_000
    few: int = 1_000
    stock: int = 100_000
    bulk: int = 100_000
    lanes: int = 1_000
    hold_s: float = 60.0
    reads: int = 1_000
    finished: int = 1_000_000
    history: int = 10_000_000
    warm: int = 100_000
    fresh: int = 3_000
    pickups: int = 100
    killing: int = 10_000
    steps: int = 2_000
    wakes: int = 80
    waiting: int = 5_000
    fleets: Sequence[int] = (1, 10, 100, 1_000)
    real_workers: int = 100
    kills: int = 50


FULL = Sizes()
QUICK = Sizes(
    seconds=0.4,
    backlog=50_000,
    stock=25_000,
    bulk=10_000,
    hold_s=6.0,
    reads=200,
    finished=50_000,
    history=50_000,
    warm=10_000,
    fresh=500,
    pickups=20,
    killing=500,
    steps=200,
    wakes=20,
    waiting=500,
    fleets=(1, 5, 20),
    real_workers=5,
    kills=3,
)


@dataclass(frozen=True, slots=True)
class Run:
    free: Database
    loaded: Database
    processes: Processes
    sizes: Sizes

    def one(self, probe: Probe[T]) -> T:
        return self.processes.measure([probe])[0]

    def repeated(self, probe: Probe[T]) -> list[T]:
        return [self.one(probe) for _ in range(self.sizes.samples)]

    def in_turn(self, first: Probe[T], second: Probe[T]) -> tuple[list[T], list[T]]:
        """Take samples of two things alternately, so that a slow moment of the machine affects both."""
        pairs = [(self.one(first), self.one(second)) for _ in range(self.sizes.samples)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


Benchmark = Callable[[Run], Iterator[Figure]]
