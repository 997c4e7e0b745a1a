"""The demo, as a newcomer runs it."""

import signal
from pathlib import Path

import pytest

from tests.cli.world import Cli, ended
from tests.waiting import eventually


def homes() -> set[Path]:
    return set(Path("/var/tmp").glob("outlive-demo-*"))


def processes_in(home: Path) -> list[str]:
    """The command lines of all that run in a folder or name it: the worker and its children, the server."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(home) in words or Path(process / "cwd").readlink().is_relative_to(home):
                found.append(words)
        except OSError:
            continue
    return found


def test_the_demo_is_right_and_leaves_nothing_behind() -> None:
    before = homes()
    summary = ended(Cli(None).process("demo", "--json")).json
    assert summary["right"] is True
    assert (summary["acknowledged"], summary["succeeded"], summary["failed"]) == (40, 37, 1)
    killers = {killer["task"]: killer for killer in summary["quarantined"]}
    assert killers.keys() == {"outlive.demo.jobs.parse", "outlive.demo.jobs.unpack"}
    assert killers["outlive.demo.jobs.parse"]["signal"] == "SIGSEGV"
    assert "in parse" in killers["outlive.demo.jobs.parse"]["stack"]
    assert killers["outlive.demo.jobs.unpack"]["peak_memory_bytes"] > 96_000_000
    assert "bomb.zip" in killers["outlive.demo.jobs.unpack"]["output"]
    assert (summary["retried"], summary["finished_twice"]) == (8, 0)
    assert homes() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_nothing_behind(number: signal.Signals) -> None:
    before = homes()
    demo = Cli(None).process("demo", PYTHONUNBUFFERED="1")
    assert demo.stdout is not None
    assert next(line for line in demo.stdout if "are enqueued" in line)
    [home] = homes() - before
    assert len(processes_in(home)) > 2
    demo.send_signal(number)
    assert ended(demo).code == 130
    assert not home.exists()
    eventually(lambda: not processes_in(home), within_s=5)
