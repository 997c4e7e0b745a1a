"""The pages that are generated, from the code and from the reports. `./run docs --generate` writes them."""

from __future__ import annotations

from pathlib import Path

from outlive.metrics import catalogue
from tools.docs import api, cli, figures, schema, states

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def _metrics() -> str:
    """The page of the metrics: its introduction as it stands, and the tables from the catalogue."""
    parts = {
        "Of each worker": catalogue.OF_WORKER,
        "Of each worker and `outlive reap`": catalogue.OF_PROCESS,
        "Of the whole database": catalogue.OF_DATABASE,
    }
    tables = "\n".join(_table(title, metrics) for title, metrics in parts.items())
    introduction, _, _ = (REFERENCE / "metrics.md").read_text(encoding="utf-8").partition(tables.splitlines()[0])
    return introduction + tables


def _table(title: str, metrics: tuple[catalogue.Metric, ...]) -> str:
    lines = [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Every generated page, as it must be."""
    return {
        REFERENCE / "api.md": api.as_markdown(),
        REFERENCE / "cli.md": cli.as_markdown(),
        REFERENCE / "metrics.md": _metrics(),
        REFERENCE / "schema.md": schema.as_markdown(),
        REFERENCE / "states.md": states.as_markdown(),
        **{ROOT / page: figures.filled(page) for page in figures.PAGES},
    }
