"""How much the bench measures, and for how long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`seconds` is the length of one sample; a figure is the median of `samples`. The last four are for workers."""

    seconds: float = 2.0
    samples: int = 3
    backlog: int = 1_000_000
    few: int = 1_000
    stock: int = 100_000
    bulk: int = 100_000
    lanes: int = 1_000
    hold_s: float = 60.0
    reads: int = 1_000
    warm: int = 100_000
    fresh: int = 3_000
    pickups: int = 100
    killing: int = 10_000


FULL = Sizes()
QUICK = Sizes(
    seconds=0.4,
    backlog=50_000,
    stock=25_000,
    bulk=10_000,
    hold_s=6.0,
    reads=200,
    warm=10_000,
    fresh=500,
    pickups=20,
    killing=500,
)
