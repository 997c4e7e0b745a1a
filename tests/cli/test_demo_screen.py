"""The screen of the demo, in 80 columns and 24 lines."""

import io
from collections import Counter
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from outlive.cli.demo import show
from outlive.cli.demo.snapshot import Snapshot

TASKS = ("collect", "fetch", "price", "search", "value")
WORKERS = [{"pid": 100 + n, "state": "active", "slots": 4, "running": 2} for n in range(3)]
SOURCES: list[dict[str, Any]] = [
    {"name": name, "enabled": True, "breaker": "closed", "rate_limit_per_minute": 60.0, "tokens": 1, "burst": 2}
    | {"failure_streak": 0}
    for name in ("auction", "museum", "shop")
]
SEEN = Snapshot({task: Counter(pending=3) for task in TASKS}, WORKERS, SOURCES, [], 5)


@pytest.mark.parametrize("lines", [24, 14])
def test_the_newest_events_and_the_killers_stay_in_view(lines: int) -> None:
    console = Console(width=80, height=lines, file=io.StringIO(), force_terminal=True)
    board = show.Board(Live(console=console, auto_refresh=False))
    board.see(SEEN, 50)
    board.say(show.kill(4711, 3))
    board.say("fetch shop: crashed, in quarantine")
    for n in range(20):
        board.say(f"search museum {n}: failed", routine=True)
        shown = ["".join(part.text for part in line).rstrip() for line in console.render_lines(board.whole())]
        assert len(shown) < lines
        assert shown[-1] == f"search museum {n}: failed"
        assert any("kill -9 4711" in line for line in shown)
        assert any("in quarantine" in line for line in shown)
    assert any("jobs of" in line for line in shown) is (lines > 20)
