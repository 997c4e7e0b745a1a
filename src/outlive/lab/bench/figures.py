"""What comes out of a measurement: samples, their median and spread, and the bound that they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure must reach: at least or at most a value or a part of its reference."""

    kind: Literal["at least", "at most", "of reference", "at most of reference"]
    value: float

    def __str__(self) -> str:
        match self.kind:
            case "at least":
                return f"≥ {self.value:,.0f}"
            case "at most":
                return f"≤ {self.value:g}"
            case "of reference":
                return f"≥ {self.value:.0%}"
            case "at most of reference":
                return f"≤ {self.value:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. `reference` are samples taken in turn with these, of what they are compared with."""

    line: str
    name: str
    unit: str
    samples: Sequence[float]
    reference: Sequence[float] = ()
    bound: Bound | None = None
    series: Sequence[tuple[float, float]] = field(default=())

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        """The median as a part of the reference's median."""
        return self.median / statistics.median(self.reference) if self.reference else None

    @property
    def passed(self) -> bool | None:
        """None: nothing is asked of it."""
        if self.bound is None:
            return None
        match self.bound.kind:
            case "at least":
                return self.median >= self.bound.value
            case "at most":
                return self.median <= self.bound.value
            case "of reference":
                return self.ratio is not None and self.ratio >= self.bound.value
            case "at most of reference":
                return self.ratio is not None and self.ratio <= self.bound.value

    def as_json(self) -> dict[str, object]:
        return {
            "line": self.line,
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 4),
            "min": round(min(self.samples), 4),
            "max": round(max(self.samples), 4),
            "samples": [round(sample, 4) for sample in self.samples],
            "reference": round(statistics.median(self.reference), 4) if self.reference else None,
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "bound": None if self.bound is None else str(self.bound),
            "passed": self.passed,
            "series": [[round(at_s, 3), round(value, 2)] for at_s, value in self.series],
        }
