"""The screen of the demo."""

import io
from collections import Counter

import pytest
from rich.console import Console

from outlive.cli.demo import show
from outlive.cli.demo.verdict import Snapshot
from tests.driving.making import Queue

SEEN = Snapshot({"collect": Counter(pending=3)}, [], [], [])


@pytest.mark.parametrize("terminal", [True, False])
def test_routine_events_do_not_push_a_kill_off_the_screen(
    terminal: bool, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=terminal)
    monkeypatch.setattr("outlive.cli.screen.console", lambda: console)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    with show.Audience(queue, json=False) as audience:
        audience.see(SEEN, 50)
        audience.say(show.kill(4711, 3))
        for n in range(20):
            audience.say(f"search museum {n}: failed", routine=True)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("kill -9 4711") == 1
    assert printed.count("search museum") == (0 if terminal else 20)
    assert ("no job is in quarantine" in printed) is terminal
