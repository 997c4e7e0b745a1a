"""A stranger uses up the memory of a group, and the kernel kills the process that the game has chosen."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outlive.worker.limits import cgroups
from outlive.worker.limits.cgroups import Group
from outlive_lab.gameday import squeeze
from tests.waiting import eventually

SLEEPER = "kept = b'x' * (16 << 20); print(flush=True); import time; time.sleep(600)"


@pytest.fixture
def group() -> Iterator[Group]:
    place = cgroups.find()
    if place is None or place.version == 2:
        pytest.skip("no memory group of version 1 can be made here")
    top = place.path / f"{cgroups.PREFIX}squeezed"
    made = Group(place.version, top / "zygote")
    made.path.mkdir(parents=True)
    yield made
    eventually(made.remove, within_s=10, what="the group is gone")
    top.rmdir()


def test_the_kernel_kills_the_zygote_and_spares_its_neighbour(group):
    with (
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as zygote,
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as neighbour,
    ):
        for one in (zygote, neighbour):
            group.add(one.pid)
            assert one.stdout is not None
            one.stdout.readline()
        assert squeeze.group_of(zygote.pid) == group
        squeezing = squeeze.squeeze(zygote.pid, group)
        assert eventually(lambda: next(squeezing), within_s=60, what="the kernel has killed a process")
        assert zygote.wait(10) == -signal.SIGKILL
        assert (neighbour.poll(), group.kills()) == (None, 1)
        assert next(squeezing, "over") == "over"
        neighbour.kill()
