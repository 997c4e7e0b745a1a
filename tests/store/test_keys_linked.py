"""Jobs with a concurrency key that wait for other jobs or belong to a batch."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import Connect, claim_job, count, end, enqueue, make, request, run_job, state_of
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, sound, succeed

__all__ = ["sound"]


def linked(**others: Any) -> bytes:
    return msgspec.json.encode({"key": CUSTOMER, **others})


def test_a_released_job_queues_while_its_key_is_full(connection: db.Connection) -> None:
    first, needed = make_keyed(connection), make(connection)
    job = make(connection, links=linked(after=[needed]))
    assert (state_of(connection, job), admitted(connection)) == (State.BLOCKED, [first])
    run_job(connection, needed)
    assert (state_of(connection, job), admitted(connection)) == (State.PENDING, [first])
    [running] = claim(connection)
    assert running.id == first
    assert claim(connection) == []
    succeed(connection, running)
    assert [one.id for one in claim(connection)] == [job]


def test_jobs_that_wait_for_others_take_no_slot(connection: db.Connection) -> None:
    needed = make(connection)
    dependent = make(connection, links=linked(after=[needed]))
    other = make_keyed(connection)
    assert admitted(connection) == [other]
    succeed(connection, claim_job(connection, other))
    assert admitted(connection) == []
    run_job(connection, needed)
    assert admitted(connection) == [dependent]


def test_a_chain_of_jobs_with_one_key_runs_through_it(connection: db.Connection) -> None:
    first = request(links=linked())
    second = request(links=linked(after=[first.id]))
    third = request(links=linked(after=[second.id]))
    enqueue(connection, [first, second, third])
    for job in (first, second, third):
        assert admitted(connection) == [job.id]
        run_job(connection, job.id)
    assert count(connection, "keyed_jobs") == 0


def test_an_operator_releases_a_job_with_a_key_into_its_queue(connection: db.Connection) -> None:
    first, needed = make_keyed(connection), make(connection)
    job = make(connection, links=linked(after=[needed]))
    [change] = db.run(connection, store.release([job]))
    assert (change.changed, change.state) == (True, "pending")
    assert admitted(connection) == [first]
    succeed(connection, claim_job(connection, first))
    assert admitted(connection) == [job]


@pytest.mark.parametrize("before", [True, False])
def test_a_job_that_is_cancelled_with_those_it_waits_for_leaves_its_key_alone(
    connection: db.Connection, before: bool
) -> None:
    needed = make(connection)
    if before:
        db.run(connection, store.cancel([needed]))
    job = make(connection, links=linked(after=[needed], on_failure="cancel"))
    if not before:
        db.run(connection, store.cancel([needed]))
    assert state_of(connection, job) is State.CANCELLED
    assert count(connection, "keyed_jobs") == 0


def test_a_job_whose_needs_ended_before_is_admitted_at_once(connection: db.Connection) -> None:
    needed = make(connection)
    run_job(connection, needed)
    jobs = [make(connection, links=linked(after=[needed])) for _ in range(2)]
    assert admitted(connection) == jobs[:1]
    assert [state_of(connection, job) for job in jobs] == [State.PENDING] * 2


def test_a_job_is_admitted_that_was_enqueued_while_the_job_it_needs_ended(
    connection: db.Connection, connect: Connect
) -> None:
    needed = make(connection)
    other = connect()
    with other.transaction():
        job = make(other, links=linked(after=[needed]))
        make_keyed(other, "another")
        run_job(connection, needed)
    assert admitted(connection) == [job]
    assert admitted(connection, "another") != []


def test_a_job_that_waited_and_is_retried_queues_for_a_slot(connection: db.Connection) -> None:
    needed = make(connection)
    job = make(connection, links=linked(after=[needed]))
    run_job(connection, needed)
    [claimed] = claim(connection)
    second = make_keyed(connection)
    end(connection, Ended(claimed.token, Outcome.FAILED, after_s=0.0))
    assert state_of(connection, job) is State.RETRYABLE
    assert len(admitted(connection)) == 1
    for _ in range(2):
        [running] = claim(connection)
        succeed(connection, running)
    assert {state_of(connection, one) for one in (job, second)} == {State.SUCCEEDED}


def test_cancelling_a_batch_gives_back_the_slots_of_its_jobs(connection: db.Connection) -> None:
    batch = UUID(int=77)
    db.run(connection, store.open_batch(batch, "import"))
    mine = [make(connection, links=linked(batch=batch)) for _ in range(3)]
    mine.append(make(connection, links=linked(batch=batch, after=mine[:1])))
    other = make_keyed(connection)
    assert admitted(connection) == mine[:1]
    db.run(connection, store.close_batch(batch, cancelling=True))
    db.run(connection, store.cancel_batch(batch))
    assert {state_of(connection, job) for job in mine} == {State.CANCELLED}
    assert admitted(connection) == [other]
    counts = db.run(connection, store.batch_counts(batch))
    assert counts is not None
    assert (counts.cancelled, counts.done) == (4, True)
