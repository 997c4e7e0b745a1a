"""Jobs with a concurrency key that wait for other jobs or belong to a batch."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import request
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, sound, succeed

__all__ = ["sound"]


def linked(**others: Any) -> bytes:
    return msgspec.json.encode({"key": CUSTOMER, **others})


def test_a_released_job_queues_while_its_key_is_full(queue):
    first, needed = make_keyed(queue), queue.make()
    job = queue.make(links=linked(after=[needed]))
    assert (queue.state_of(job), admitted(queue)) == (State.BLOCKED, [first])
    queue.run_job(needed)
    assert (queue.state_of(job), admitted(queue)) == (State.PENDING, [first])
    [running] = claim(queue)
    assert running.id == first
    assert claim(queue) == []
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [job]


def test_jobs_that_wait_for_others_take_no_slot(queue):
    needed = queue.make()
    dependent = queue.make(links=linked(after=[needed]))
    other = make_keyed(queue)
    assert admitted(queue) == [other]
    succeed(queue, queue.claim_job(other))
    assert admitted(queue) == []
    queue.run_job(needed)
    assert admitted(queue) == [dependent]


def test_a_chain_of_jobs_with_one_key_runs_through_it(queue):
    first = request(links=linked())
    second = request(links=linked(after=[first.id]))
    third = request(links=linked(after=[second.id]))
    queue.enqueue([first, second, third])
    for job in (first, second, third):
        assert admitted(queue) == [job.id]
        queue.run_job(job.id)
    assert queue.count("keyed_jobs") == 0


def test_an_operator_releases_a_job_with_a_key_into_its_queue(queue):
    first, needed = make_keyed(queue), queue.make()
    job = queue.make(links=linked(after=[needed]))
    [change] = queue.run(store.release([job]))
    assert (change.changed, change.state) == (True, "pending")
    assert admitted(queue) == [first]
    succeed(queue, queue.claim_job(first))
    assert admitted(queue) == [job]


@pytest.mark.parametrize("before", [True, False])
def test_a_job_that_is_cancelled_with_those_it_waits_for_leaves_its_key_alone(queue, before):
    needed = queue.make()
    if before:
        queue.run(store.cancel([needed]))
    job = queue.make(links=linked(after=[needed], on_failure="cancel"))
    if not before:
        queue.run(store.cancel([needed]))
    assert queue.state_of(job) is State.CANCELLED
    assert queue.count("keyed_jobs") == 0


def test_a_job_whose_needs_ended_before_is_admitted_at_once(queue):
    needed = queue.make()
    queue.run_job(needed)
    jobs = [queue.make(links=linked(after=[needed])) for _ in range(2)]
    assert admitted(queue) == jobs[:1]
    assert [queue.state_of(job) for job in jobs] == [State.PENDING] * 2


def test_a_job_is_admitted_that_was_enqueued_while_the_job_it_needs_ended(queue, connect):
    needed = queue.make()
    other = connect()
    with other.transaction():
        job = other.make(links=linked(after=[needed]))
        make_keyed(other, "another")
        queue.run_job(needed)
    assert admitted(queue) == [job]
    assert admitted(queue, "another") != []


def test_a_job_that_waited_and_is_retried_queues_for_a_slot(queue):
    needed = queue.make()
    job = queue.make(links=linked(after=[needed]))
    queue.run_job(needed)
    [claimed] = claim(queue)
    second = make_keyed(queue)
    queue.end(Ended(claimed.token, Outcome.FAILED, after_s=0.0))
    assert queue.state_of(job) is State.RETRYABLE
    assert len(admitted(queue)) == 1
    for _ in range(2):
        [running] = claim(queue)
        succeed(queue, running)
    assert {queue.state_of(one) for one in (job, second)} == {State.SUCCEEDED}


def test_cancelling_a_batch_gives_back_the_slots_of_its_jobs(queue):
    batch = UUID(int=77)
    queue.run(store.open_batch(batch, "import"))
    mine = [queue.make(links=linked(batch=batch)) for _ in range(3)]
    mine.append(queue.make(links=linked(batch=batch, after=mine[:1])))
    other = make_keyed(queue)
    assert admitted(queue) == mine[:1]
    queue.run(store.close_batch(batch, cancelling=True))
    queue.run(store.cancel_batch(batch))
    assert {queue.state_of(job) for job in mine} == {State.CANCELLED}
    assert admitted(queue) == [other]
    counts = queue.run(store.batch_counts(batch))
    assert counts is not None
    assert (counts.cancelled, counts.done) == (4, True)
