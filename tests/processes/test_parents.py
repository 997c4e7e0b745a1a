"""Parents, between the zygote and its children: a job that kills its parent is recognized, and harms no other job."""

import os
import signal
import time
from typing import Any

import pytest

import outlive
from outlive.states import Outcome, State
from tests import faults
from tests.driving.jobs import attempts, begun, finished, number_in
from tests.driving.making import Queue
from tests.driving.workers import alive
from tests.waiting import eventually


def charges(queue: Queue, job: outlive.Job[Any]) -> list[tuple[int, ...]]:
    """The failures, crashes and losses of a job after each attempt."""
    query = "select failures, crashes, losses from outlive.attempts where job_id = %s order by attempt"
    return queue.execute(query, [job.id]).fetchall()


def is_unharmed(queue: Queue, job: outlive.Job[Any]) -> bool:
    """Whether a job has run once, and nothing is charged to it."""
    return charges(queue, job) == [(0, 0, 0)]


def test_a_job_that_kills_its_parent_is_quarantined_and_its_neighbours_notice_nothing(start, queue, tmp_path):
    worker = start(slots=4)
    neighbours = [faults.wait_for.enqueue(str(tmp_path / "go")) for _ in range(2)]
    begun(tmp_path / "go", times=len(neighbours))
    zygote = worker.zygote()
    killers = [faults.kill_parent.enqueue(how) for how in ("alone", "with its group") for _ in range(2)]
    assert [finished(job) for job in killers] == 4 * [State.QUARANTINED]
    for job in killers:
        ends = attempts(queue, job)
        assert [one.outcome for one in ends] == 9 * [Outcome.RELEASED] + 3 * [Outcome.CRASHED]
        words = "the process was killed with its parent"
        assert {one.error for one in ends[:9]} == {words}
        assert [one.error for one in ends[9:]] == [
            f"{words}, as at its last {n} attempts: about to kill" for n in (9, 10, 11)
        ]
        for one in ends:
            assert (one.signal, one.output) == ("SIGKILL", "about to kill\n")
            assert one.peak_memory_bytes
            assert one.cpu_s
        assert charges(queue, job) == [*(9 * [(0, 0, 0)]), (0, 1, 0), (0, 2, 0), (0, 3, 0)]
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    (tmp_path / "go").touch()
    assert [job.result(timeout=20) for job in neighbours] == 2 * ["seen"]
    assert all(is_unharmed(queue, job) for job in neighbours)
    assert worker.zygote() == zygote
    eventually(lambda: len(worker.parents()) == len(worker.children()) == 4, what="all slots are there again")


def test_warm_neighbours_of_a_job_that_kills_its_parent_go_on(start, queue, tmp_path):
    """A warm child shares its parent with no job, whether it is idle or busy."""
    worker = start(slots=2)
    pid = faults.warm.enqueue().result(timeout=20)
    held = faults.warm_until.enqueue(str(tmp_path / "go"))
    eventually((tmp_path / "go.begun").exists, within_s=20)
    killer = faults.kill_parent.enqueue()
    assert finished(killer) is State.QUARANTINED
    assert alive(pid)
    assert faults.warm.enqueue().result(timeout=20) == pid
    (tmp_path / "go").touch()
    assert finished(held) is State.SUCCEEDED
    assert is_unharmed(queue, held)
    assert len(worker.parents()) <= 4


def test_leftover_processes_of_a_job_that_kills_its_parent_are_gone_before_its_end(start, tmp_path):
    start(slots=1)
    job = faults.kill_parent.using(max_crashes=1).enqueue("after a daemon", str(tmp_path / "daemon"))
    pid = number_in(tmp_path / "daemon")
    assert finished(job) is State.QUARANTINED
    assert not alive(pid)


def test_no_job_is_blamed_for_a_parent_that_another_may_have_killed(start, queue, tmp_path):
    """The child of an earlier job has reported its end, and does not exit."""
    start(slots=1)
    first = faults.kill_parent_after_the_end.enqueue(str(tmp_path / "kill"))
    assert finished(first) is State.SUCCEEDED
    second = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    (tmp_path / "kill").touch()
    eventually(lambda: attempts(queue, second)[:1], within_s=20)
    (tmp_path / "go").touch()
    assert finished(second) is State.SUCCEEDED
    back, succeeded = attempts(queue, second)
    assert (back.outcome, succeeded.outcome) == (Outcome.RELEASED, Outcome.SUCCEEDED)
    assert back.error == "the process was killed with its parent"


@pytest.mark.fault(69)
def test_parents_that_a_stranger_kills_six_times_are_charged_to_no_job(start, queue, tmp_path):
    start(slots=2)
    job = faults.wait_for.using(max_crashes=1, max_losses=1).enqueue(str(tmp_path / "go"))
    for n in range(1, 7):
        (child,) = filter(alive, begun(tmp_path / "go", times=n))
        os.kill(faults.parent_of(child), signal.SIGKILL)
        eventually(lambda: len(attempts(queue, job)) == n, within_s=20)  # noqa: B023
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"
    assert set(charges(queue, job)) == {(0, 0, 0)}


@pytest.mark.fault(69)
def test_a_stranger_who_kills_idle_parents_too_is_never_taken_for_a_job(start, queue, tmp_path):
    worker = start(slots=2)
    job = faults.wait_for.using(max_crashes=1, max_losses=1).enqueue(str(tmp_path / "go"))
    for n in range(1, 14):
        (child,) = filter(alive, begun(tmp_path / "go", times=n))
        parent = faults.parent_of(child)
        for pid in (*(one for one in worker.parents() if one != parent), parent):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(attempts(queue, job)) == n, within_s=20)  # noqa: B023
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"
    assert set(charges(queue, job)) == {(0, 0, 0)}


def test_idle_parents_that_are_killed_cost_no_job_anything(start, queue):
    worker = start(slots=2)
    for _ in range(3):
        eventually(lambda: len(worker.children()) == 2)
        for pid in worker.parents():
            os.kill(pid, signal.SIGKILL)
        jobs = [faults.add.enqueue(n, n) for n in range(4)]
        assert [job.result(timeout=20) for job in jobs] == [0, 2, 4, 6]
        for job in jobs:
            assert set(charges(queue, job)) == {(0, 0, 0)}


def test_a_job_that_stops_its_parent_delays_no_other(start):
    start(slots=2)
    stopping = faults.keep_stopping_parent.enqueue()
    eventually(lambda: stopping.status() is State.RUNNING)
    began = time.monotonic()
    assert [faults.add.enqueue(n, n).result(timeout=20) for n in range(40)] == [2 * n for n in range(40)]
    assert time.monotonic() - began < 10
