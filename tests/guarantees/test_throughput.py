"""Throughput: healthy jobs on a real worker keep theirs beside killers, floods and backlogs.

The ordinary tests, which share the machine, use fewer jobs and require half of it. The long ones require what the
guarantee says.
"""

import pytest

from outlive import State
from outlive_lab.bench.stock import Stock
from tests import faults
from tests.driving.jobs import finished
from tests.guarantees.throughput import ROUNDS, kept, rounds, seconds
from tests.waiting import eventually

NAP_S = 0.05


BOUNDS = [pytest.param(60, 0.5, id="busy"), pytest.param(300, 0.9, id="exact", marks=pytest.mark.long)]


@pytest.mark.parametrize(("jobs", "least"), BOUNDS)
def test_healthy_jobs_keep_their_throughput_beside_killers(start, queue, jobs, least):
    start()
    alone: list[float] = []
    beside: list[float] = []
    for _ in rounds(alone, beside, least):
        alone.append(seconds(queue, [faults.nap.job(NAP_S) for _ in range(jobs)]))
        killers = faults.app.enqueue_many(
            [faults.die_by.job("SIGSEGV"), faults.die_by.job("SIGKILL"), faults.exit_with.job(9)]
        )
        beside.append(seconds(queue, [faults.nap.job(NAP_S) for _ in range(jobs)]))
        for killer in killers:
            finished(killer, State.QUARANTINED)
    assert kept(alone, beside) >= least


@pytest.mark.parametrize(("jobs", "least"), BOUNDS)
def test_neighbours_keep_their_throughput_beside_a_flood_of_output(start, queue, tmp_path, jobs, least):
    """The flood has one of the slots. In the rounds without it, a job that only waits has that slot."""
    start()
    alone: list[float] = []
    beside: list[float] = []
    for n in rounds(alone, beside, least):
        quiet = faults.wait_for.enqueue(str(tmp_path / f"go-{n}"))
        eventually(lambda: quiet.status() is State.RUNNING)  # noqa: B023
        alone.append(seconds(queue, [faults.nap.job(NAP_S) for _ in range(jobs)]))
        (tmp_path / f"go-{n}").touch()
        finished(quiet, State.SUCCEEDED)
        flood = faults.flood_for_ever.enqueue(str(tmp_path / f"flows-{n}"))
        eventually((tmp_path / f"flows-{n}").exists)
        beside.append(seconds(queue, [faults.nap.job(NAP_S) for _ in range(jobs)]))
        assert flood.status() is State.RUNNING
        flood.cancel()
        finished(flood, State.CANCELLED)
    assert kept(alone, beside) >= least


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_million_older_jobs_of_other_tasks_do_not_slow_a_worker(start, queue):
    """The older jobs are in the same queue, in front."""
    start()
    warm = faults.warm.using(queue="bench")
    alone = [seconds(queue, [warm.job(n) for n in range(3000)]) for _ in range(ROUNDS)]
    Stock(count=1_000_000, task="another.app.task").put(queue)
    queue.execute("vacuum analyze outlive.waiting, outlive.jobs")
    beside = [seconds(queue, [warm.job(n) for n in range(3000)]) for _ in range(ROUNDS)]
    assert kept(alone, beside) >= 0.75
