"""One run of the bench: what every line measures with, and how it says that it moves on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from outlive.lab.bench.crew import Crew, Order
from outlive.lab.bench.databases import Databases
from outlive.lab.bench.figures import Figure
from outlive.lab.bench.sizes import Sizes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    databases: Databases
    crew: Crew
    sizes: Sizes
    moved_on: Callable[[], None]

    def measure(self, *orders: Order[T]) -> list[T]:
        """One sample: all orders at the same time."""
        taken = self.crew.measure(orders)
        self.moved_on()
        return taken

    def one(self, order: Order[T]) -> T:
        return self.measure(order)[0]

    def in_turn(self, first: Order[T], second: Order[T]) -> tuple[list[T], list[T]]:
        """Samples of two things, one after the other and again, so that a slow moment of the machine hits both."""
        pairs = [(self.one(first), self.one(second)) for _ in range(self.sizes.samples)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@dataclass(frozen=True, slots=True)
class Line:
    """Something that can be asked for by its name: it takes so many samples and gives figures."""

    name: str
    about: str
    samples: Callable[[Sizes], int]
    figures: Callable[[Run], Iterator[Figure]]


def named(lines: Sequence[Line], names: Sequence[str]) -> list[Line]:
    """Those of the lines, in their own order; all if none is named."""
    return [line for line in lines if not names or line.name in names]
