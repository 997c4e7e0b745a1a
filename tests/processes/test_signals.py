"""Signals to the supervisor: it obeys them, unless one of its own jobs has sent them."""

import asyncio
import signal

import pytest

from outlive.states import State
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.signals import HANDLED
from tests import faults
from tests.driving.jobs import attempts
from tests.waiting import eventually


@pytest.mark.fault(70)
def test_a_job_that_signals_its_worker_is_charged_and_the_worker_works_on(start, queue):
    worker = start(slots=2)
    names = ["SIGTERM", "SIGHUP", "SIGCONT"]
    job = faults.signal_worker.enqueue(*names)
    eventually(lambda: job.status() is State.QUARANTINED, within_s=40, what="it is charged three times")
    told = [f"its process sent {name} to its worker" for name in names]
    assert [(one.outcome, one.error) for one in attempts(queue, job)] == [("crashed", words) for words in told]
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    assert worker.log().count(" started") == 1
    assert "reloaded" not in worker.log()
    assert worker.stop() == 0


def test_a_process_that_a_worker_starts_has_no_signal_blocked(start, tmp_path):
    start()
    assert int(faults.blocked_signals.enqueue().result(timeout=20), 16) == 0
    path = tmp_path / "alert"

    async def alert() -> None:
        alerts = Alerts()
        alerts.send(f"grep SigBlk /proc/self/status > {path}", "test", {})
        await alerts.finish(30)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        asyncio.run(alert())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert int(path.read_text().split()[1], 16) == 0
