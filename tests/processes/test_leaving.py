"""Children that have nothing to do any more, zygotes that were stopped, and what jobs leave behind: nothing stays."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import faults
from tests.processes.conftest import Worker, alive
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("app")
Start = Callable[..., Worker]


@pytest.mark.parametrize("how", ["os._exit", "our loop"])
def test_a_child_that_does_not_exit_after_its_last_job_is_killed(start: Start, how: str) -> None:
    worker = start(slots=1)
    pid = faults.stay_after_the_end.enqueue(how).result(timeout=20)
    eventually(lambda: not alive(pid), within_s=6, what="it is gone")
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    assert ("has not exited" in worker.log()) == (how == "our loop")


def test_a_warm_child_that_does_not_hear_its_dismissal_is_killed(start: Start) -> None:
    worker = start(slots=1)
    pid = faults.stay_warm_for_ever.enqueue().result(timeout=20)
    worker.process.send_signal(signal.SIGHUP)
    eventually(lambda: "imported anew" in worker.log(), within_s=20)
    eventually(lambda: not alive(pid), within_s=6, what="it is gone")


def test_a_zygote_that_a_job_has_stopped_goes_on_within_a_second(start: Start) -> None:
    worker = start(slots=1)
    zygote = worker.zygote()

    def stopped() -> bool:
        return "\nState:\tT" in Path(f"/proc/{zygote}/status").read_text()

    for _ in range(3):
        os.kill(zygote, signal.SIGSTOP)
        began = time.monotonic()
        eventually(stopped, within_s=2)
        eventually(lambda: not stopped(), within_s=10)
        assert time.monotonic() - began < 1.5, "a second, and something for a busy machine"
