"""The results of a run: a table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.table import Table
from rich.text import Text

from outlive.lab import environment
from outlive.lab.bench.figures import Figure
from outlive.lab.bench.run import Run

MARKS = {True: Text("pass", "green"), False: Text("missed", "bold red"), None: Text("")}


def table(figures: Sequence[Figure]) -> Table:
    made = Table(
        title="outlive bench", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    made.add_column("measured")
    for name in ("median", "min – max", "of ref.", "must", ""):
        made.add_column(name, justify="right", no_wrap=True)
    for figure, following in zip(figures, [*figures[1:], None], strict=True):
        made.add_row(
            f"{figure.name} [dim]{figure.unit}[/]",
            _number(figure.median),
            Text(f"{_number(min(figure.samples))} – {_number(max(figure.samples))}", "dim"),
            "" if figure.ratio is None else f"{figure.ratio:.0%}",
            "" if figure.bound is None else str(figure.bound),
            MARKS[figure.passed],
            end_section=following is None or following.benchmark != figure.benchmark,
        )
    return made


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def as_json(run: Run, figures: Sequence[Figure], took_s: float) -> dict[str, object]:
    return {
        "figures": [figure.as_json() for figure in figures],
        "missed": [figure.name for figure in figures if figure.passed is False],
        "took_s": round(took_s, 1),
        "sizes": asdict(run.sizes),
        "settings": run.databases.settings(),
        **environment.describe(run.databases.version()),
    }
