"""The demo, as a newcomer runs it."""

import contextlib
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from outlive import linux
from tests.driving.commands import Cli, ended
from tests.waiting import eventually


def home_of(demo: subprocess.Popen[str]) -> Path:
    """The folder of this demo, and of no other that runs on this machine: a process below it works there."""

    def found() -> Path | None:
        for pid in linux.descendants_of(demo.pid):
            with contextlib.suppress(OSError):
                folder = Path(f"/proc/{pid}/cwd").readlink()
                for path in (folder, *folder.parents):
                    if path.name.startswith("outlive-demo-"):
                        return path
        return None

    home = eventually(found, within_s=60, what="the demo has a folder")
    assert home
    return home


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


def test_the_demo_is_right_shows_a_dashboard_and_leaves_nothing_behind():
    demo = Cli(None).process("demo", "--quick", "--json", "--keep")
    home = home_of(demo)
    assert demo.stderr is not None
    link = next(line for line in demo.stderr if line.startswith("dashboard: ")).split()[-1]
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    shown = opener.open(link.replace("/?", "/killers?"), timeout=10).read().decode()
    assert "SIGSEGV" in shown
    demo.send_signal(signal.SIGINT)
    summary = ended(demo, within_s=30).json
    assert (summary["right"], summary["wrong"]) == (True, [])
    assert (summary["acknowledged"], summary["spawned"], summary["finished"], summary["failed"]) == (8, 46, 52, 0)
    killers = {killer["source"]: killer for killer in summary["quarantined"]}
    assert killers.keys() == {"shop", "auction"}
    assert killers["shop"]["signal"] == "SIGSEGV"
    assert "in _decode" in killers["shop"]["stack"]
    assert killers["auction"]["peak_memory_bytes"] > 256_000_000
    assert "album: copy" in killers["auction"]["output"]
    [lost] = summary["workers_lost"]
    assert lost["jobs"] > 0
    assert 0 < lost["noticed_s"] < 20
    assert 0 < lost["replaced_s"] < 60
    assert summary["breaker"]["opened"] == summary["breaker"]["closed"] > 0
    assert (summary["valuations"], summary["finished_twice"]) == (8, 0)
    assert summary["records_written"] > summary["duplicates_refused"] > 0
    assert not home.exists()
    assert not processes_in(home)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_demo_that_is_stopped_leaves_nothing_behind(number):
    demo = Cli(None).process("demo", "--quick", PYTHONUNBUFFERED="1")
    assert demo.stdout is not None
    assert next(line for line in demo.stdout if "coins come in" in line)
    home = home_of(demo)
    assert len(processes_in(home)) > 2
    demo.send_signal(number)
    assert ended(demo).code == 130
    assert not home.exists()
    eventually(lambda: not processes_in(home), within_s=5)
