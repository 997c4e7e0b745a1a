"""Waiting suspects: when a worker must make room for one, and when it must not."""

from datetime import timedelta

import pytest

from outlive import db, store
from outlive.states import State
from tests.driving.making import TASK, claim, counters, hold_of, make, register_task, set_now, state_of, value
from tests.store.acting import ANNA, BERT, NOW, Place, bring, end_by, give_up
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

MINUTE = timedelta(seconds=60)
CLOSED = [
    "update outlive.sources set enabled = false",
    "update outlive.sources set paused_until = outlive.now() + interval '1 hour'",
    "update outlive.sources set rate_limit_per_minute = 0.1, full_at = outlive.now() + interval '10 min'",
]


def wait(connection: db.Connection, tasks: tuple[str, ...] = (TASK,), queues: list[str] | None = None) -> bool:
    return db.run(connection, store.suspects_wait(list(tasks), queues, after_s=60))


def test_a_suspect_has_waited_too_long_after_a_minute_and_not_before(connection: db.Connection) -> None:
    assert not wait(connection)
    bring(connection, Place.SUSPECT)
    set_now(connection, NOW + MINUTE - timedelta(microseconds=1))
    assert not wait(connection)
    set_now(connection, NOW + MINUTE)
    assert wait(connection)
    db.run(connection, store.claim_suspect(ANNA, tasks=[TASK]))
    assert not wait(connection)


@pytest.mark.parametrize("place", [Place.PENDING, Place.QUARANTINED, Place.BLOCKED])
def test_no_worker_makes_room_for_a_job_that_is_no_suspect(connection: db.Connection, place: Place) -> None:
    bring(connection, place)
    set_now(connection, NOW + MINUTE)
    assert not wait(connection)


def test_no_worker_makes_room_for_a_suspect_that_it_could_not_run(connection: db.Connection) -> None:
    bring(connection, Place.SUSPECT)
    set_now(connection, NOW + MINUTE)
    assert not wait(connection, tasks=("other",))
    assert not wait(connection, queues=["slow"])
    assert wait(connection, queues=["slow", "default"])


def test_no_worker_makes_room_for_a_suspect_of_a_paused_queue(connection: db.Connection) -> None:
    bring(connection, Place.SUSPECT)
    set_now(connection, NOW + MINUTE)
    db.run(connection, store.pause_queue("default"))
    assert not wait(connection)
    db.run(connection, store.resume_queue("default"))
    assert wait(connection)


@pytest.mark.parametrize("closed", CLOSED)
def test_no_worker_makes_room_for_a_suspect_of_a_closed_source(connection: db.Connection, closed: str) -> None:
    bring(connection, Place.SUSPECT)
    connection.execute("update outlive.held set source = 'shop'")
    connection.execute("insert into outlive.sources (name) values ('shop')")
    set_now(connection, NOW + MINUTE)
    assert wait(connection)
    connection.execute(closed.encode())
    assert not wait(connection)
    assert db.run(connection, store.claim_suspect(ANNA, tasks=[TASK])) == []


def test_a_worker_makes_room_for_a_suspect_whose_source_admits_it_soon(connection: db.Connection) -> None:
    """Otherwise jobs that run all the time could take all that the source admits."""
    bring(connection, Place.SUSPECT)
    connection.execute("update outlive.held set source = 'shop'")
    connection.execute(
        "insert into outlive.sources (name, rate_limit_per_minute, full_at) values ('shop', 6, %s)",
        [NOW + MINUTE + timedelta(seconds=10)],
    )
    set_now(connection, NOW + MINUTE)
    assert wait(connection)


def test_a_suspect_that_has_waited_very_long_begins_beside_other_jobs(connection: db.Connection) -> None:
    scene = bring(connection, Place.SUSPECT)
    beside_others = store.claim_suspect(BERT, tasks=[TASK], after_s=600)
    set_now(connection, NOW + timedelta(seconds=599))
    assert db.run(connection, beside_others) == []
    set_now(connection, NOW + timedelta(seconds=600))
    [claimed] = db.run(connection, beside_others)
    assert (claimed.id, claimed.alone_s) == (scene.job, 0.0)
    assert value(connection, "select alone from outlive.running") is False


def test_a_suspect_that_succeeds_is_done_and_one_that_fails_is_cleared(connection: db.Connection) -> None:
    for event, state in [("succeed", State.SUCCEEDED), ("fail", State.RETRYABLE)]:
        scene = bring(connection, Place.SUSPECT)
        [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
        assert (claimed.id, claimed.alone_s) == (scene.job, 5.0)
        end_by(connection, BERT, claimed.token, event)
        assert state_of(connection, scene.job) is state
    assert counters(connection, scene.job) == (1, 0, 0)


def test_a_worker_that_looks_up_its_jobs_sees_that_one_must_run_alone(connection: db.Connection) -> None:
    bring(connection, Place.SUSPECT)
    db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    make(connection)
    claim(connection, worker=BERT, limit=1)
    assert [job.alone_s for job in db.run(connection, store.held_attempts(BERT))] == [5.0, 0.0]


def test_a_suspect_over_a_lowered_limit_of_crashes_is_quarantined_instead_of_started(connection: db.Connection) -> None:
    job = make(connection, options={"max_losses": 2})
    [claimed] = claim(connection, worker=ANNA, limit=1)
    end_by(connection, ANNA, claimed.token, "crash", after_s=0.0)
    claim(connection, worker=ANNA, limit=1)
    give_up(connection, ANNA)
    assert len(db.run(connection, store.reap())) == 1
    register_task(connection, max_crashes=1)
    assert db.run(connection, store.claim_suspect(BERT, tasks=[TASK])) == []
    assert hold_of(connection, job) == ("quarantined", "killed its process once (max_crashes = 1)")
    assert counters(connection, job) == (0, 1, 1)
