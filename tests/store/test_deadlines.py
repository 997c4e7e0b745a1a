"""Deadlines: the whole life of a job ends by then, wherever the job is."""

from uuid import UUID

import msgspec
import pytest
from psycopg import errors

from outlive import State, store
from outlive.model import Ended
from outlive.protocol import Wait
from outlive.states import Outcome
from tests.driving.making import NOON, WORKER, Queue, request

HOUR_S = 3600.0
TOO_LATE = "deadline: it had to end by 2100-01-01 13:00:00 UTC"


def deadline(after_s: float = HOUR_S, **more: object) -> bytes:
    return msgspec.json.encode({"deadline_s": after_s, **more})


@pytest.fixture(autouse=True)
def at_noon(queue):
    queue.set_now()


def last_of(queue: Queue, job: UUID) -> tuple[str, str, str]:
    query = "select outcome, state, error from outlive.attempts where job_id = %s order by attempt desc limit 1"
    return tuple(queue.execute(query, [job]).fetchone() or ())


def suspend(queue: Queue, job: UUID, *, may_park: bool = False) -> None:
    one = queue.claim_job(job)
    wait = Wait(one.token, f"sleep {one.attempt}", after_s=HOUR_S)
    assert queue.run(store.suspend(WORKER, wait, may_park=may_park)).outcome == "suspended"


def test_a_job_that_waits_at_its_deadline_is_not_claimed_and_is_cancelled(queue):
    first = queue.make(run_at=queue.value("select %s + interval '1 day'", NOON))
    retried = queue.make(links=deadline())
    queue.run_job(retried, Outcome.FAILED, error="no", after_s=60.0)
    waits, blocked = queue.make(links=deadline()), queue.make(links=deadline(after=[str(first)]))
    held = queue.make(links=deadline())
    queue.execute("select outlive.block(array[%s::uuid], 'not now')", [held])
    queue.set_now(later_s=HOUR_S)
    assert queue.claim() == []
    queue.follow()
    for job in (waits, blocked, retried, held):
        assert last_of(queue, job) == ("cancelled", "cancelled", TOO_LATE)
    assert queue.count("expiring") == 0


def test_a_suspended_job_is_cancelled_at_its_deadline_and_its_process_does_not_go_on(queue):
    suspended, parked = queue.make(links=deadline()), queue.make(links=deadline())
    suspend(queue, suspended)
    suspend(queue, parked, may_park=True)
    queue.set_now(later_s=HOUR_S)
    assert queue.run(store.resume(WORKER, limit=5, lease_s=60.0)) == []
    queue.follow()
    assert last_of(queue, suspended) == last_of(queue, parked) == ("cancelled", "cancelled", TOO_LATE)
    assert queue.count("held") == queue.count("expiring") == 0


def test_a_wait_ends_the_expiry_of_a_job_and_not_its_deadline(queue):
    job = queue.make(links=deadline(2 * HOUR_S, expires_s=60.0))
    suspend(queue, job)
    assert queue.values("select whole from outlive.expiring") == [True]
    queue.set_now(later_s=HOUR_S)
    queue.run(store.end_due(10))
    suspend(queue, job)
    queue.set_now(later_s=2 * HOUR_S)
    queue.follow()
    assert queue.state_of(job) is State.CANCELLED


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.FAILED, Outcome.LOST])
def test_a_running_job_is_asked_to_stop_and_ends_with_the_reason_however_it_ends(queue, outcome):
    job = queue.make(links=deadline())
    token = queue.claim_job(job, lease_s=2 * HOUR_S).token
    queue.follow()
    assert queue.run(store.cancels(WORKER)) == set()
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    assert (queue.state_of(job), queue.run(store.cancels(WORKER))) == (State.RUNNING, {token})
    assert queue.run(store.cancel_expired()) == 0, "it is asked once"
    queue.end(Ended(token, outcome, error="cancelled on request"))
    assert last_of(queue, job) == (outcome, "cancelled", TOO_LATE)
    assert queue.count("expiring") == 0


def test_a_running_job_that_succeeds_after_all_has_succeeded(queue):
    job = queue.make(links=deadline())
    token = queue.claim_job(job).token
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    queue.end(Ended(token))
    assert queue.state_of(job) is State.SUCCEEDED
    assert queue.count("expiring") == 0


def test_a_running_job_past_its_expiry_only_is_not_asked_to_stop(queue):
    job = queue.make(links=deadline(2 * HOUR_S, expires_s=HOUR_S))
    token = queue.claim_job(job).token
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    assert queue.run(store.cancels(WORKER)) == set()
    queue.run(store.cancel([job]))
    queue.end(Ended(token, Outcome.CANCELLED, error="cancelled on request"))
    assert last_of(queue, job)[2] == "cancelled on request"


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED])
def test_a_job_that_ends_in_time_leaves_no_note(queue, outcome):
    job = queue.make(links=deadline(expires_s=60.0), options={"max_attempts": 1})
    queue.run_job(job, outcome)
    assert queue.state_of(job) is State(outcome)
    assert queue.count("expiring") == 0


def test_a_job_in_quarantine_stays_there_and_runs_if_it_is_released_later(queue):
    job = queue.make_quarantined(links=deadline(expires_s=60.0))
    queue.set_now(later_s=60.0)
    queue.follow()
    assert queue.values("select whole from outlive.expiring") == [True], "what is not due yet is kept"
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    assert queue.state_of(job) is State.QUARANTINED
    queue.run(store.release([job]))
    assert [one.id for one in queue.claim()] == [job]


def test_the_task_says_the_deadline_of_its_jobs_unless_a_job_says_otherwise(queue):
    queue.register_task(deadline_s=60.0)
    plain = queue.value("select outlive.enqueue('work')")
    own = queue.value("select outlive.enqueue('work', deadline => '2 minutes')")
    [many, ever] = requests = [request(), request(links=deadline(0))]
    queue.enqueue(requests)
    rows = dict(queue.execute("select job_id, extract(epoch from expires_at - %s)::int from outlive.expiring", [NOON]))
    assert rows == {plain: 60, own: 120, many.id: 60}
    assert (queue.row_of(own)["deadline"], queue.row_of(ever.id)["deadline"]) == (
        queue.value("select %s + interval '2 minutes'", NOON),
        None,
    )
    with pytest.raises(errors.DatabaseError, match="and a deadline is no longer"):
        queue.execute("select outlive.enqueue('work', deadline => '400 years')")


def test_a_locked_job_is_left_for_the_next_time(queue, connect):
    running, suspended = queue.make(links=deadline()), queue.make(links=deadline())
    token = queue.claim_job(running).token
    suspend(queue, suspended)
    other = connect()
    queue.set_now(later_s=HOUR_S)
    with other.transaction():
        other.execute("select from outlive.running for update")
        other.execute("select from outlive.held for update")
        queue.follow()
        assert queue.run(store.cancels(WORKER)) == set()
        assert queue.state_of(suspended) is State.SUSPENDED
    queue.follow()
    assert queue.run(store.cancels(WORKER)) == {token}
    assert queue.state_of(suspended) is State.CANCELLED


def test_an_end_does_not_wait_for_the_note_of_its_deadline(queue, connect):
    job = queue.make(links=deadline())
    token = queue.claim_job(job).token
    other = connect()
    with other.transaction():
        other.execute("select from outlive.expiring for update")
        queue.end(Ended(token))
    assert queue.count("expiring") == 1
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    assert (queue.state_of(job), queue.count("expiring")) == (State.SUCCEEDED, 0)
