"""A job that can't run now holds no slot of its key: it waits for its queue or its retry, or it is a suspect."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import (
    TASK,
    WORKER,
    Connect,
    end,
    lane,
    new_worker,
    register_task,
    register_worker,
    set_now,
    state_of,
    values,
)
from tests.store.acting import NOW, assert_sound, give_up
from tests.store.keyed import admitted, claim, make_keyed, sound, succeed
from tests.waiting import eventually

__all__ = ["sound"]

AT_WORK = """
select 1 from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid()
"""


def test_a_job_whose_queue_is_paused_gives_its_slot_to_jobs_of_other_queues(connection: db.Connection) -> None:
    paused, queued, other = (make_keyed(connection, queue=queue) for queue in ("night", "night", "day"))
    assert admitted(connection) == [paused]
    db.run(connection, store.pause_queue("night"))
    assert admitted(connection) == [other]
    later = make_keyed(connection, queue="night")
    succeed(connection, *claim(connection, [lane(queue="day")]))
    assert admitted(connection) == []
    assert db.run(connection, store.resume_queue("night"))
    for one in (paused, queued, later):
        assert admitted(connection) == [one], "in their order"
        succeed(connection, *claim(connection, [lane(queue="night")]))


def test_the_slot_of_a_running_job_stays_while_its_queue_is_paused(connection: db.Connection) -> None:
    make_keyed(connection)
    [running] = claim(connection)
    other = make_keyed(connection, queue="day")
    db.run(connection, store.pause_queue("default"))
    assert admitted(connection) == [running.id]
    end(connection, Ended(running.token, Outcome.FAILED, after_s=0.0))
    assert admitted(connection) == [other], "its retry waits for the queue"
    assert state_of(connection, running.id) is State.RETRYABLE


def test_a_job_that_is_due_while_its_queue_is_paused_waits_for_the_queue(connection: db.Connection) -> None:
    set_now(connection, NOW)
    job = make_keyed(connection, delay_s=10.0)
    db.run(connection, store.pause_queue("default"))
    set_now(connection, NOW + timedelta(seconds=20))
    assert admitted(connection) == []
    db.run(connection, store.resume_queue("default"))
    assert admitted(connection) == [job]


def test_a_job_that_got_its_slot_as_its_queue_was_paused_gives_it_back_soon(
    connection: db.Connection, connect: Connect
) -> None:
    other = connect()
    job = make_keyed(connection)
    with other.transaction():
        other.execute("select from outlive.waiting for update")  # As a claim does, which takes another one.
        db.run(connection, store.pause_queue("default"))
    assert admitted(connection) == [job]
    db.run(connection, store.requeue_missed())
    assert admitted(connection) == []


def test_a_job_that_was_enqueued_while_its_queue_was_resumed_is_admitted_soon(
    connection: db.Connection, connect: Connect
) -> None:
    other = connect()
    db.run(connection, store.pause_queue("default"))
    with other.transaction():
        job = make_keyed(other)
        db.run(connection, store.resume_queue("default"))
    assert admitted(connection) == [], "it saw a paused queue"
    db.run(connection, store.requeue_missed())
    assert admitted(connection) == [job]


@pytest.mark.parametrize("verb", ["cancel", "block"])
def test_a_job_that_is_taken_away_as_its_time_comes_leaves_its_key(
    connection: db.Connection, connect: Connect, verb: str
) -> None:
    reaper, operator = connect(), connect()
    make_keyed(connection)
    claim(connection)
    job = make_keyed(connection, delay_s=10.0)
    for session in (connection, reaper, operator):
        set_now(session, NOW + timedelta(seconds=20))
    act = store.cancel([job]) if verb == "cancel" else store.block([job], "a person decides")
    with ThreadPoolExecutor(1) as acting:
        with reaper.transaction():
            db.run(reaper, store.admit_due(100))  # It lets the job queue.
            acted = acting.submit(db.run, operator, act)
            eventually(lambda: acted.done() or values(connection, AT_WORK))
        acted.result(timeout=30)
    assert_sound(connection)
    assert job not in values(connection, "select job_id from outlive.keyed_jobs")


def make_suspect(connection: db.Connection) -> UUID:
    register_task(connection, max_losses=2)
    suspect = make_keyed(connection)
    worker = register_worker(connection, new_worker())
    claim(connection, worker=worker)
    give_up(connection, worker)
    db.run(connection, store.reap())
    return suspect


def claim_suspect(connection: db.Connection) -> list[UUID]:
    return [one.id for one in db.run(connection, store.claim_suspect(WORKER, tasks=[TASK]))]


def test_a_suspect_that_waits_for_a_worker_holds_no_slot(connection: db.Connection) -> None:
    suspect = make_suspect(connection)
    healthy = [make_keyed(connection) for _ in range(2)]
    assert admitted(connection) == healthy[:1]
    succeed(connection, *claim(connection))
    assert claim_suspect(connection) == [], "it queues now, behind the one that runs"
    succeed(connection, *claim(connection))
    assert admitted(connection) == [suspect], "its turn has come"
    assert claim_suspect(connection) == [suspect]
    assert_sound(connection)


def test_a_suspect_that_no_worker_claims_in_its_turn_loses_its_slot(connection: db.Connection) -> None:
    set_now(connection, NOW)
    suspect = make_suspect(connection)
    make_keyed(connection)
    running = claim(connection)
    other = make_keyed(connection)
    assert claim_suspect(connection) == []
    succeed(connection, *running)
    assert admitted(connection) == [suspect]
    set_now(connection, NOW + timedelta(seconds=7))
    assert admitted(connection) == [other]
    succeed(connection, *claim(connection))
    assert claim_suspect(connection) == [suspect]


def test_a_suspect_runs_beside_others_of_its_key_as_far_as_its_limit_allows(connection: db.Connection) -> None:
    suspect = make_suspect(connection)
    make_keyed(connection)
    claim(connection)
    assert claim_suspect(connection) == []
    assert values(connection, "select state from outlive.keyed_jobs where job_id = %s", suspect) == ["queued"]
