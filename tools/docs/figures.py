"""The measured figures on pages, taken from the committed reports.

A page names a figure in the second brackets of a link, `[20,900][warm]`. The text of the link, and the definitions at
the end of the page, which lead to the reports, are generated.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "docs" / "reports"
PAGES = ("README.md", "docs/explanation/noticing-a-death.md", "docs/how-to/size.md", "docs/how-to/tune.md")
TITLES = {"pgqueuer": "PgQueuer", "rq": "RQ"}
FIGURE = re.compile(r"\[[^\[\]]+\]\[([a-z0-9-]+)\]")
DEFINITIONS = re.compile(r"\n(?:\[[a-z0-9-]+\]: \S*reports/\S+\n)+\Z")


def filled(page: str) -> str:
    """A page, named by its path in the repository, with the figures of the committed reports."""
    text = DEFINITIONS.sub("", (ROOT / page).read_text(encoding="utf-8"))
    text = FIGURE.sub(lambda found: f"[{figures()[found[1]][0]}][{found[1]}]", text)
    names = dict.fromkeys(FIGURE.findall(text))
    reports = os.path.relpath(REPORTS, (ROOT / page).parent)
    definitions = (f"[{name}]: {reports}/{figures()[name][1]}.md\n" for name in names)
    return "".join([text, "\n", *definitions])


@cache
def figures() -> dict[str, tuple[str, str]]:
    """Every figure that a page may name, as it is written there, and the report that has it."""
    readers = {"peers-0.2": _of_peers, "growth-0.2": _of_growth, "worker-0.1": _of_worker, "gameday-2000": _of_gameday}
    return {
        name: (text, report)
        for report, read in readers.items()
        for name, text in read(json.loads((REPORTS / f"{report}.json").read_text(encoding="utf-8"))).items()
    }


def _of_peers(report: dict[str, Any]) -> dict[str, str]:
    modes: dict[str, dict[str, Any]] = {name: system["modes"] for name, system in report["systems"].items()}

    def median(system: str, mode: str, sample: str = "drain") -> float:
        return float(statistics.median(modes[system][mode]["samples"][sample]))

    def best_peer(sample: str, *, fork: bool = False) -> str:
        """The best median that a peer reaches in any mode, and the peer."""
        found = [
            (median(system, mode, sample), TITLES.get(system, system.capitalize()))
            for system in modes.keys() - {"outlive"}
            for mode in modes[system]
            if modes[system][mode]["samples"].get(sample) and (mode == "fork") == fork
        ]
        value, title = min(found) if sample == "p50" else max(found)
        return f"{_ms(value) if sample == 'p50' else _rate(value)} ({title})"

    warm, quiet, fresh = (median("outlive", mode) for mode in ("default", "tuned", "fork8"))
    one, bulk = (median("outlive", "default", sample) for sample in ("one", "bulk"))
    busy_ms = 1000 * report["cpu_count"]  # All processors are busy while jobs are drained.
    return {
        "warm": _rate(warm),
        "quiet-gain": _percent(quiet / warm - 1),
        "clean": _rate(median("outlive", "clean")),
        "fresh": _rate(fresh),
        "cpu-warm": f"{busy_ms / warm:.2f} ms",
        "cpu-fresh": _ms(busy_ms / fresh),
        "thousand": f"{1000 * one / bulk:.0f}",
        "pick-up": _ms(median("outlive", "default", "p50")),
        "peer-warm": best_peer("drain"),
        "peer-fresh": best_peer("drain", fork=True),
        "peer-pick-up": best_peer("p50"),
    }


def _of_growth(report: dict[str, Any]) -> dict[str, str]:
    at = {(point["curve"], point["at"]): point["value"] for point in report["points"]}

    def loss(curve: str, small: int, large: int) -> str:
        return _percent(1 - at[curve, large] / at[curve, small])

    return {
        "loss-10m-waiting": loss("pending", 1_000_000, 10_000_000),
        "loss-1000-lanes": loss("lanes", 1, 1_000),
        "loss-16-workers": loss("workers", 2, 16),
        "loss-10-kb": loss("payload", 100, 10_000),
        "loss-100-kb": loss("payload", 100, 100_000),
    }


def _of_worker(report: dict[str, Any]) -> dict[str, str]:
    median = {figure["name"]: figure["median"] for figure in report["figures"]}
    return {
        "supervisor": f"{median['supervisor, after 100,000 jobs']:.0f} MB",
        "idle-child": f"{median['idle child beyond the zygote, after 100,000 jobs']:.1f} MB",
    }


def _of_gameday(game: dict[str, Any]) -> dict[str, str]:
    death = next(time for time in game["times"] if time["name"] == "worker death to claimable again")
    wrong = ("lost", "finished_twice", "effect_doubled", "stale_effect")
    return {
        "kills": f"{game['kills']:,}",
        "wrong": f"{sum(game[name] for name in wrong)}",
        "reclaimed": f"{death['p50_s']:.1f} s",
        "reclaimed-p99": f"{death['p99_s']:.1f} s",
    }


def _rate(per_second: float) -> str:
    """Three digits: more would not be the same in the next run."""
    return f"{float(f'{per_second:.3g}'):,.0f}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms"


def _percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")
