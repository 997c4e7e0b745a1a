"""Faults of processes that need a whole system; tests/processes has the others. The number is the fault's."""

import contextlib
import signal
import subprocess
import time

import pytest

from outlive.states import State
from tests import faults
from tests.driving.jobs import begun
from tests.driving.workers import alive
from tests.matrix.asking import ends, outcomes
from tests.waiting import eventually


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("grace_s", "settings"),
    [
        (6.0, {"heartbeat_s": "0.2", "stale_s": "2", "dead_s": "4", "lease_s": "4", "renew_s": "0.5"}),
        pytest.param(25.0, {}, marks=pytest.mark.long),
    ],
    ids=["short", "exact"],
)
def test_a_worker_that_is_told_to_stop_is_gone_before_an_orchestrator_would_kill_it(
    start, queue, database_url, tmp_path, grace_s, settings
):
    """An orchestrator sends SIGTERM, and SIGKILL 5 s after the grace. The worker shows life until its end."""
    worker = start(grace_s=str(grace_s), **settings)
    observer = start(**settings | {"queues": "another"})
    polite, deaf = faults.wait_for.enqueue(str(tmp_path / "never")), faults.ignore_all.enqueue(str(tmp_path / "deaf"))
    begun(tmp_path / "never")
    eventually((tmp_path / "deaf").exists, within_s=20)
    tree, told = worker.tree(), time.monotonic()
    worker.send(signal.SIGTERM)
    limit_s = float(settings.get("stale_s", 60))
    silent = "select extract(epoch from outlive.now() - last_seen) from outlive.workers where id = %s"
    while worker.process.poll() is None:
        assert time.monotonic() - told < grace_s + 5, worker.log()
        row = queue.execute(silent, [worker.id]).fetchone()
        assert row
        assert row[0] < limit_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(0.05)
    assert worker.process.returncode == 0
    assert polite.result(timeout=5) == "stopped by itself"
    assert (outcomes(database_url, deaf), deaf.status()) == (["released"], State.PENDING)
    assert not any(alive(pid) for pid in tree)
    assert "Dead worker" not in observer.log()


@pytest.mark.fault(23)
@pytest.mark.parametrize("healthy", [200, pytest.param(9_900, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_a_hundred_killers_at_once_are_caught_each_after_its_limit(start, queue, database_url, healthy):
    worker = start(slots=4)
    limits = [1 + n % 3 for n in range(100)]
    killers = [faults.die_by.using(max_crashes=limit).enqueue("SIGKILL") for limit in limits]
    others = faults.app.enqueue_many(faults.warm.job(n) for n in range(healthy))
    eventually(lambda: sum(ends(queue, others).values()) >= healthy, within_s=300, what="the healthy end")
    eventually(lambda: sum(ends(queue, killers).values()) >= 100, within_s=100, what="the killers are caught")
    assert ends(queue, others) == {State.SUCCEEDED: healthy}
    assert ends(queue, killers) == {State.QUARANTINED: 100}
    assert outcomes(database_url, *killers) == ["crashed"] * sum(limits)
    counted = "select job_id, count(*) from outlive.attempts where outcome = 'crashed' group by 1"
    each = {killer.id: limit for killer, limit in zip(killers, limits, strict=True)}
    assert dict(queue.execute(counted).fetchall()) == each
    assert worker.process.poll() is None
    assert queue.execute("select count(*) from outlive.workers").fetchone() == (1,)
