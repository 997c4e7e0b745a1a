"""A job that can't run now holds no slot of its key: it waits for its queue or its retry, or it is a suspect."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import TASK, WORKER, Queue, lane
from tests.store.acting import NOW, assert_sound
from tests.store.keyed import admitted, claim, make_keyed, sound, succeed
from tests.store.test_keys import suspect_of_key
from tests.waiting import eventually

__all__ = ["sound"]

AT_WORK = """
select 1 from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid()
"""


def test_a_job_whose_queue_is_paused_gives_its_slot_to_jobs_of_other_queues(connection):
    paused, queued, other = (make_keyed(connection, queue=queue) for queue in ("night", "night", "day"))
    assert admitted(connection) == [paused]
    connection.run(store.pause_queue("night"))
    assert admitted(connection) == [other]
    later = make_keyed(connection, queue="night")
    succeed(connection, *claim(connection, [lane(queue="day")]))
    assert admitted(connection) == []
    assert connection.run(store.resume_queue("night"))
    for one in (paused, queued, later):
        assert admitted(connection) == [one], "in their order"
        succeed(connection, *claim(connection, [lane(queue="night")]))


def test_the_slot_of_a_running_job_stays_while_its_queue_is_paused(queue):
    make_keyed(queue)
    [running] = claim(queue)
    other = make_keyed(queue, queue="day")
    queue.run(store.pause_queue("default"))
    assert admitted(queue) == [running.id]
    queue.end(Ended(running.token, Outcome.FAILED, after_s=0.0))
    assert admitted(queue) == [other], "its retry waits for the queue"
    assert queue.state_of(running.id) is State.RETRYABLE


def test_a_job_that_is_due_while_its_queue_is_paused_waits_for_the_queue(queue):
    queue.set_now(NOW)
    job = make_keyed(queue, delay_s=10.0)
    queue.run(store.pause_queue("default"))
    queue.set_now(NOW + timedelta(seconds=20))
    assert admitted(queue) == []
    queue.run(store.resume_queue("default"))
    assert admitted(queue) == [job]


def test_a_job_that_got_its_slot_as_its_queue_was_paused_gives_it_back_soon(queue, connect):
    other = connect()
    job = make_keyed(queue)
    with other.transaction():
        other.execute("select from outlive.waiting for update")  # As a claim does, which takes another one.
        queue.run(store.pause_queue("default"))
    assert admitted(queue) == [job]
    queue.run(store.requeue_missed())
    assert admitted(queue) == []


def test_a_job_that_was_enqueued_while_its_queue_was_resumed_is_admitted_soon(queue, connect):
    other = connect()
    queue.run(store.pause_queue("default"))
    with other.transaction():
        job = make_keyed(other)
        queue.run(store.resume_queue("default"))
    assert admitted(queue) == [], "it saw a paused queue"
    queue.run(store.requeue_missed())
    assert admitted(queue) == [job]


@pytest.mark.parametrize("verb", ["cancel", "block"])
def test_a_job_that_is_taken_away_as_its_time_comes_leaves_its_key(queue, connect, verb):
    reaper, operator = connect(), connect()
    make_keyed(queue)
    claim(queue)
    job = make_keyed(queue, delay_s=10.0)
    for session in (queue, reaper, operator):
        session.set_now(NOW + timedelta(seconds=20))
    act = store.cancel([job]) if verb == "cancel" else store.block([job], "a person decides")
    with ThreadPoolExecutor(1) as acting:
        with reaper.transaction():
            reaper.run(store.admit_due(100))  # It lets the job queue.
            acted = acting.submit(db.run, operator, act)
            eventually(lambda: acted.done() or queue.values(AT_WORK))
        acted.result(timeout=30)
    assert_sound(queue)
    assert job not in queue.values("select job_id from outlive.keyed_jobs")


def claim_suspect(queue: Queue) -> list[UUID]:
    return [one.id for one in queue.run(store.claim_suspect(WORKER, tasks=[TASK]))]


def test_a_suspect_that_waits_for_a_worker_holds_no_slot(queue):
    suspect = suspect_of_key(queue)
    healthy = [make_keyed(queue) for _ in range(2)]
    assert admitted(queue) == healthy[:1]
    succeed(queue, *claim(queue))
    assert claim_suspect(queue) == [], "it queues now, behind the one that runs"
    succeed(queue, *claim(queue))
    assert admitted(queue) == [suspect], "its turn has come"
    assert claim_suspect(queue) == [suspect]
    assert_sound(queue)


def test_a_suspect_that_no_worker_claims_in_its_turn_loses_its_slot(queue):
    queue.set_now(NOW)
    suspect = suspect_of_key(queue)
    make_keyed(queue)
    running = claim(queue)
    other = make_keyed(queue)
    assert claim_suspect(queue) == []
    succeed(queue, *running)
    assert admitted(queue) == [suspect]
    queue.set_now(NOW + timedelta(seconds=7))
    assert admitted(queue) == [other]
    succeed(queue, *claim(queue))
    assert claim_suspect(queue) == [suspect]


def test_a_suspect_runs_beside_others_of_its_key_as_far_as_its_limit_allows(queue):
    suspect = suspect_of_key(queue)
    make_keyed(queue)
    claim(queue)
    assert claim_suspect(queue) == []
    assert queue.values("select state from outlive.keyed_jobs where job_id = %s", suspect) == ["queued"]
