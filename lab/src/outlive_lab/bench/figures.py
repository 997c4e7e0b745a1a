"""The results: samples, their median and spread, the bound that the median must meet, and a table of all figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

MARKS = {True: Text("pass", "green"), False: Text("missed", "bold red"), None: Text("")}


@dataclass(frozen=True, slots=True)
class Bound:
    """What a median must reach: at least or at most a value, or a part of the reference's median."""

    kind: Literal["at least", "at most", "of reference", "at most of reference"]
    value: float

    def __str__(self) -> str:
        sign = "≤" if self.kind.startswith("at most") else "≥"
        if self.kind.endswith("of reference"):
            return f"{sign} {self.value:.0%}"
        return f"{sign} {self.value:g}" if self.kind == "at most" else f"{sign} {self.value:,.0f}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `reference` holds samples of something else, taken alternately with these."""

    benchmark: str
    name: str
    unit: str
    samples: Sequence[float]
    reference: Sequence[float] = ()
    bound: Bound | None = None
    series: Sequence[tuple[float, float]] = ()
    """Seconds and rates, of a benchmark that is drawn over time."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        """The median as a part of the reference's median."""
        return self.median / statistics.median(self.reference) if self.reference else None

    @property
    def passed(self) -> bool | None:
        """Whether the median meets the bound; None if there is no bound."""
        if self.bound is None:
            return None
        value = self.ratio if self.bound.kind.endswith("of reference") else self.median
        if value is None:
            return False
        return value <= self.bound.value if self.bound.kind.startswith("at most") else value >= self.bound.value

    def as_json(self) -> dict[str, object]:
        return {
            "line": self.benchmark,
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


def table(figures: Sequence[Figure]) -> Table:
    made = Table(
        title="outlive bench", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    made.add_column("measured")
    for name in ("median", "min – max", "of ref.", "must", ""):
        made.add_column(name, justify="right", no_wrap=True)
    for figure, following in zip_longest(figures, figures[1:]):
        made.add_row(
            f"{figure.name} [dim]{figure.unit}[/]",
            _number(figure.median),
            Text(f"{_number(min(figure.samples))} – {_number(max(figure.samples))}", "dim"),
            "" if figure.ratio is None else f"{figure.ratio:.0%}",
            str(figure.bound or ""),
            MARKS[figure.passed],
            end_section=following is None or following.benchmark != figure.benchmark,
        )
    return made


def as_markdown(figures: Sequence[Figure]) -> list[str]:
    """The same table, for a report."""
    lines = ["| measured | median | min – max | of reference | must | |", "|---|---|---|---|---|---|"]
    words = {True: "held", False: "**missed**", None: ""}
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.0%}"
        spread = f"{_number(min(figure.samples))} – {_number(max(figure.samples))}"
        median = f"{_number(figure.median)} {figure.unit}"
        must = str(figure.bound or "")
        lines.append(f"| {figure.name} | {median} | {spread} | {ratio} | {must} | {words[figure.passed]} |")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
