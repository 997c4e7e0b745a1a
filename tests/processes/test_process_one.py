"""A worker as process 1 of a container: it reaps what jobs leave behind, and stops on SIGTERM."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from outlive import State, linux
from tests import faults
from tests.driving.workers import alive
from tests.waiting import eventually

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def works() -> bool:
    """Whether this machine lets the test make a namespace of processes."""
    return bool(shutil.which("unshare")) and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.usefixtures("faults_app"),
    pytest.mark.skipif(os.getuid() != 0 or not works(), reason="only root can make a namespace of processes"),
]


def number_inside(pid: int) -> str:
    """The number that a process has in its own namespace."""
    return Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1]


def zombies(pid: int) -> list[int]:
    return [one for one in linux.descendants_of(pid) if not alive(one)]


def test_a_worker_as_process_one_reaps_orphans_and_stops_in_order(start, tmp_path):
    outer = start(slots=2, within=UNSHARE)
    (first,) = linux.children_of(outer.pid)
    assert number_inside(first) == "1"
    left = faults.leave_grandchildren.enqueue(str(tmp_path / "left"))
    assert left.result(timeout=20) is None
    before = set(linux.descendants_of(first))
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    eventually(lambda: not zombies(first), what="every orphan is reaped")
    eventually(lambda: b"sleep\x00600" not in commands(first), what="what the job left is killed")
    job = faults.fresh_until.enqueue(str(tmp_path / "go"))
    eventually(lambda: (tmp_path / "go.begun").exists(), within_s=20, what="the job begins")
    os.kill(first, signal.SIGTERM)
    outer.says("stops: 1 job is running")
    (tmp_path / "go").touch()
    assert outer.process.wait(20) == 0
    assert job.status() is State.SUCCEEDED
    assert not [pid for pid in before if alive(pid)]


def commands(pid: int) -> bytes:
    """The command lines of all processes below one."""
    return b"\n".join(linux.read(f"/proc/{one}/cmdline") for one in linux.descendants_of(pid))
