"""What the pictures of the bench and the gameday share. It imports matplotlib, so import it only to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

INK, PALE, GREY, LIMIT = "#1f2933", "#cbd2d9", "#7b8794", "#c2410c"
GREEN, BLUE, PURPLE, RED = "#0f766e", "#2563eb", "#9333ea", "#dc2626"
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALE,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "axes.axisbelow": True,
    "axes.labelcolor": "#52606d",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "legend.frameon": False,
    "xtick.color": "#52606d",
    "ytick.color": INK,
    "errorbar.capsize": 3,
}


@contextmanager
def picture(path: Path, title: str, *, rows: int, columns: int, size: tuple[int, int], **more: Any) -> Iterator[Any]:
    """The axes of a picture, row by row. It is written to the file afterwards."""
    with pyplot.rc_context(_STYLE):
        drawn, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **more)
        yield axes.flat
        drawn.suptitle(title, fontsize=12, color="#52606d")
        drawn.get_layout_engine().set(h_pad=0.12, w_pad=0.12)
        drawn.savefig(path, dpi=120)
        pyplot.close(drawn)


def versions(summary: Mapping[str, Any]) -> str:
    """The software and the machine that a summary names, for a title."""
    found = summary["versions"]
    return (
        f"PostgreSQL {found['postgres']}, Python {found['python']}, psycopg {found['psycopg']}, "
        f"{summary['cpu_count']} CPUs"
    )


__all__ = ["BLUE", "GREEN", "GREY", "INK", "LIMIT", "PALE", "PURPLE", "RED", "Axes", "picture", "versions"]
