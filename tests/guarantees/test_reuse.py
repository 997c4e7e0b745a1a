"""Tasks with `recycle_after`: which children get another job."""

from collections import Counter

import pytest

import outlive
from outlive.states import Outcome
from tests import faults, leftovers
from tests.driving.jobs import outcomes
from tests.driving.workers import Start, Worker, all_gone
from tests.leftovers import leave


@pytest.fixture
def worker(start: Start) -> Worker:
    """A worker with one slot, for jobs that leave something."""
    return start(slots=1, target="tests.leftovers:app")


def test_a_child_in_which_a_job_has_left_something_gets_no_other_job(worker):
    unseen, pids = [], []
    for what in leftovers.LEFT:
        pid = leave.enqueue(what).result(timeout=20)
        pids.append(pid)
        if leave.enqueue().result(timeout=20) == pid:
            unseen.append(what)
    assert unseen == []
    all_gone(pids)
    assert len(worker.tree()) < 10  # What the jobs have left is gone too.


def test_a_child_gets_another_job_if_the_last_one_has_left_nothing(worker):
    assert len({leave.enqueue().result(timeout=20) for _ in range(20)}) == 1
    assert len({leftovers.tidy.enqueue().result(timeout=20) for _ in range(20)}) == 1


def test_a_child_runs_no_more_jobs_than_its_task_allows(start):
    start(slots=2)
    jobs = faults.app.enqueue_many(faults.lukewarm.job() for _ in range(200))
    assert set(Counter(job.result(timeout=30) for job in jobs).values()) <= {1, 2}


def test_small_growth_of_many_jobs_adds_up(worker):
    pids = [leftovers.grow.enqueue().result(timeout=20) for _ in range(30)]
    times = [pids.count(pid) for pid in dict.fromkeys(pids)]
    assert len(times) > 2
    assert all(5 <= many <= 12 for many in times[:-1]), times


def test_a_job_that_fails_is_judged_as_well(worker):
    failed = leftovers.fail.enqueue("a thread")
    with pytest.raises(Exception, match="ValueError") as error:
        failed.result(timeout=20)
    assert str(leave.enqueue().result(timeout=20)) not in str(error.value)


def test_jobs_given_ahead_behind_one_that_fails_are_not_given_back(start, queue):
    start(slots=2)
    fails = faults.warm_until.using(max_attempts=1)
    jobs = faults.app.enqueue_many((fails.job("/nowhere/at all") if n % 10 == 0 else fails.job("")) for n in range(500))
    outlive.gather(jobs, timeout=60, return_exceptions=True)
    ends = "select outcome, count(*) from outlive.attempts group by outcome"
    assert dict(queue.execute(ends).fetchall()) == {"succeeded": 450, "failed": 50}


def test_numbers_that_a_job_has_seeded_are_not_drawn_by_the_next_one(worker):
    drawn = [leftovers.draw.enqueue().result(timeout=20) for _ in range(4)]
    assert len({pid for pid, _ in drawn}) == 1
    assert len({number for _, number in drawn}) == 4


@pytest.mark.long
def test_an_interpreter_of_the_tasks_own_is_compared_too(worker):
    first, second = (leftovers.leave_cold.enqueue().result(timeout=30) for _ in range(2))
    assert first == second == leftovers.leave_cold.enqueue("a thread").result(timeout=30)
    assert leftovers.leave_cold.enqueue().result(timeout=30) != first


@pytest.mark.long
def test_jobs_given_ahead_behind_one_that_leaves_something_run_elsewhere_at_no_cost(worker, queue):
    task, many = leftovers.begin, 100
    for job in leftovers.app.enqueue_many(
        task.job() for _ in range(500)
    ):  # Their pace is known now: others are given ahead.
        job.result(timeout=30)
    jobs = leftovers.app.enqueue_many([task.job("a thread" if n == many // 2 else "") for n in range(many)])
    ran = [job.result(timeout=30) for job in jobs]
    pid, began = ran[many // 2]
    assert [other for other in ran if other[0] == pid and other[1] > began] == []
    assert {other for other, _ in ran} > {pid}
    assert {tuple(outcomes(queue, job)) for job in jobs} == {(Outcome.SUCCEEDED,)}


def test_the_log_says_why_a_child_is_replaced(worker):
    leave.enqueue("a thread").result(timeout=20)
    assert worker.says("replacing a child of tests.leftovers.leave: job")
    assert worker.says("changed its Threads")
