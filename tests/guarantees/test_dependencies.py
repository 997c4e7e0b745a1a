"""Jobs that wait for other jobs."""

import pytest

import outlive
from outlive import State
from outlive.client.task import Task
from outlive.states import Outcome
from tests.processes import linked
from tests.waiting import eventually

Add = Task[[int, int], int, int]
TARGET = "tests.processes.linked:app"


def test_a_job_is_released_in_the_transaction_that_ends_the_last_that_it_needs(new_hand, connect, task):
    hand, watcher = new_hand(), connect()
    needed = [task.enqueue(n, n) for n in range(2)]
    job = task.using(after=needed).enqueue(1, 1)
    first, second = hand.claim()
    assert hand.claim() == []
    assert hand.end(first)
    assert job.status() is State.BLOCKED
    with hand.connection.transaction():
        assert hand.end(second)
        assert watcher.value("select outlive.state_of(%s)", job.id) == "blocked"
    assert watcher.value("select outlive.state_of(%s)", job.id) == "pending"
    assert [one.id for one in hand.claim()] == [job.id]


def test_a_job_that_is_enqueued_while_the_last_that_it_needs_ends_is_released(new_hand, connect, app, task):
    hand, client = new_hand(), connect()
    needed = task.enqueue(1, 1)
    (claimed,) = hand.claim()
    with client.transaction():
        job = task.using(after=needed, connection=client).enqueue(2, 2)
        assert hand.end(claimed)
    client.follow()
    assert job.status() is State.PENDING


@pytest.mark.parametrize(
    ("on_failure", "becomes"), [("block", State.BLOCKED), ("proceed", State.PENDING), ("cancel", State.CANCELLED)]
)
def test_a_failure_blocks_lets_proceed_or_cancels(hand, task, on_failure, becomes):
    needed = task.enqueue(1, 1)
    job = task.using(after=needed, on_failure=on_failure).enqueue(2, 2)
    hand.run(Outcome.FAILED, final=True)
    assert job.status() is becomes


def test_each_job_runs_once_after_all_that_it_needs_also_when_workers_are_killed(start, queue):
    layers = [outlive.group(linked.number.job(n) for n in range(20))]
    for _ in range(10):
        layers.append(outlive.group([linked.total.using(after=layers[-1]).job() for _ in range(20)]))
    last = layers[-1].then(linked.total.job())
    workers = [start(target=TARGET, slots=2) for _ in range(2)]
    done = "select count(*) from outlive.attempts where state = 'succeeded'"
    for times in range(3):
        eventually(lambda: queue.value(done) > 50 * times, within_s=60)  # noqa: B023
        workers.pop(0).kill()
        workers.append(start(target=TARGET, slots=2))
    assert last.result(timeout=120) == sum(range(20)) * 20**10
    assert queue.value(done) == 11 * 20 + 1
    assert queue.values("select needs from outlive.dependencies") == []
