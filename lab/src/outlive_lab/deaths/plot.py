"""The rounds as a picture: how fast workers died, and how soon that was noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlive_lab.deaths.report import Standing, percentile
from outlive_lab.plots import BLUE, GREY, PURPLE, RED, picture, versions


def draw(standing: Standing, summary: Mapping[str, Any], path: Path) -> None:
    title = f"outlive {summary['versions']['outlive']}: {standing.bound}; {versions(summary)}"
    reached, total = [], 0
    for one in standing.rounds:
        reached.append(total := total + sum(one.deaths.values()))
    with picture(path, title, rows=2, columns=1, size=(12, 8), sharex=True) as (rates, times):
        rates.plot(reached, [sum(one.deaths.values()) / one.played_s for one in standing.rounds], ".-", color=RED)
        rates.set_title("Deaths per second in each round, its last jobs included")
        rates.set_ylim(bottom=0)
        for (how, _, _), colour in zip(standing.times(), (BLUE, GREY, PURPLE), strict=True):
            some = [Counter(one.tenths.get(how, {})) for one in standing.rounds]
            times.plot(reached, [percentile(one, 0.99) for one in some], ".-", color=colour, label=f"{how}, p99")
        times.set_title("Seconds until a death was noticed")
        times.set_xlabel("deaths")
        times.set_ylim(bottom=0)
        times.legend(loc="upper right")
