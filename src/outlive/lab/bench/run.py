"""One run of the bench, and the benchmarks that it can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from outlive.lab.bench.databases import Databases
from outlive.lab.bench.figures import Figure
from outlive.lab.bench.processes import Probe, Processes
from outlive.lab.bench.sizes import Sizes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    databases: Databases
    processes: Processes
    sizes: Sizes
    advance: Callable[[], None]
    """Moves the progress bar by one sample."""

    def measure(self, *probes: Probe[T]) -> list[T]:
        """Take one sample, with all probes at the same time."""
        taken = self.processes.measure(probes)
        self.advance()
        return taken

    def one(self, probe: Probe[T]) -> T:
        return self.measure(probe)[0]

    def in_turn(self, first: Probe[T], second: Probe[T]) -> tuple[list[T], list[T]]:
        """Take samples of two things alternately, so that a slow moment of the machine affects both."""
        pairs = [(self.one(first), self.one(second)) for _ in range(self.sizes.samples)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Something that `--only` names. It takes `samples` samples and yields figures."""

    name: str
    about: str
    samples: Callable[[Sizes], int]
    figures: Callable[[Run], Iterator[Figure]]
