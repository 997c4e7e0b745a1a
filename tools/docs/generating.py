"""The pages that are generated from the code, and what they share. `./run docs --generate` writes them."""

from __future__ import annotations

from pathlib import Path

from outlive import states
from tools.docs import api, cli, schema

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Every generated page, as it must be."""
    return {
        REFERENCE / "api.md": api.as_markdown(),
        REFERENCE / "cli.md": cli.as_markdown(),
        REFERENCE / "schema.md": schema.as_markdown(),
        REFERENCE / "states.md": states.as_markdown(),
    }
