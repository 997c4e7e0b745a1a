"""The head of a report: the command, the machine and the software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def head(
    title: str, summary: Mapping[str, Any], arguments: Sequence[str], *, plot: str | None, json: str | None
) -> list[str]:
    versions, settings = summary["versions"], summary["settings"]
    redis = f", Redis {summary['redis']}" if summary.get("redis") else ""
    software = f"outlive {versions['outlive']}, Postgres {versions['postgres']}{redis}, Python {versions['python']}"
    durable = f"fsync {settings['fsync']}, synchronous_commit {settings['synchronous_commit']}"
    shown = ["postgresql://…" if "postgresql://" in one else one for one in arguments]  # It may have a password.
    lines = [
        f"# {title}",
        "",
        f"Measured by `./run bench {' '.join(shown)}`",
        f"in {summary['took_s']:.0f} s on {summary['cpu_count']} CPUs, with",
        f"{software} and psycopg {versions['psycopg']} ({durable}).",
        "Compare figures only within this run. [bench.md](../reference/bench.md) says what the lines mean.",
        "",
    ]
    if json and json != "-":
        lines += [f"The raw figures are in [{Path(json).name}]({Path(json).name}).", ""]
    if plot:
        lines += [f"![the figures]({Path(plot).name})", ""]
    return lines
