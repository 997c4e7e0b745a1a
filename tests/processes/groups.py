"""Memory cgroups of a test's own, below the group of the test. Root can make them, and so can a delegate."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from tests.waiting import eventually

ROOT = Path("/sys/fs/cgroup")
HIDDEN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"')
"""Starts a command that finds no cgroup, as in a container without any."""


class Group:
    """A group of version 1: the tests run where the kernel's memory controller is bound to that version."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, megabytes: int) -> None:
        (self.path / "memory.limit_in_bytes").write_text(str(megabytes * 1_000_000))

    @property
    def within(self) -> Sequence[str]:
        """The words that start a command in this group."""
        return ("sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$0" "$@"')

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        words = (self.path / "memory.oom_control").read_text().split()
        return int(words[words.index("oom_kill") + 1])

    def below(self) -> list[Path]:
        return [path for path in self.path.rglob("*") if path.is_dir()]

    def remove(self) -> None:
        def removed() -> bool:
            for path in (*reversed(self.below()), self.path):
                with contextlib.suppress(OSError):
                    for pid in (path / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                    path.rmdir()
            return not self.path.exists()

        eventually(removed, what=f"{self.path} is removed")


def new_group() -> Group:
    """Make a group, or skip the test where none can be made."""
    own = [line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line]
    if not own:
        pytest.skip("the kernel's memory controller is not bound to cgroups of version 1 here")
    path = ROOT / "memory" / own[0].lstrip("/") / f"outlive-test-{uuid4().hex[:8]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    return Group(path)
