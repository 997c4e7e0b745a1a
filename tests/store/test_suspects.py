"""Waiting suspects: when a worker must make room for one, and when it must not."""

from datetime import timedelta

import pytest

from outlive import store
from outlive.states import State
from tests.driving.making import TASK, Queue
from tests.store.acting import ANNA, BERT, NOW, Place, bring, end_by, give_up
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

MINUTE = timedelta(seconds=60)
CLOSED = [
    "update outlive.sources set enabled = false",
    "update outlive.sources set paused_until = outlive.now() + interval '1 hour'",
    "update outlive.sources set rate_limit_per_minute = 0.1, full_at = outlive.now() + interval '10 min'",
]


def wait(queue: Queue, tasks: tuple[str, ...] = (TASK,), queues: list[str] | None = None) -> bool:
    return queue.run(store.suspects_wait(list(tasks), queues, after_s=60))


def test_a_suspect_has_waited_too_long_after_a_minute_and_not_before(queue):
    assert not wait(queue)
    bring(queue, Place.SUSPECT)
    queue.set_now(NOW + MINUTE - timedelta(microseconds=1))
    assert not wait(queue)
    queue.set_now(NOW + MINUTE)
    assert wait(queue)
    queue.run(store.claim_suspect(ANNA, tasks=[TASK]))
    assert not wait(queue)


@pytest.mark.parametrize("place", [Place.PENDING, Place.QUARANTINED, Place.BLOCKED])
def test_no_worker_makes_room_for_a_job_that_is_no_suspect(queue, place):
    bring(queue, place)
    queue.set_now(NOW + MINUTE)
    assert not wait(queue)


def test_no_worker_makes_room_for_a_suspect_that_it_could_not_run(queue):
    bring(queue, Place.SUSPECT)
    queue.set_now(NOW + MINUTE)
    assert not wait(queue, tasks=("other",))
    assert not wait(queue, queues=["slow"])
    assert wait(queue, queues=["slow", "default"])


def test_no_worker_makes_room_for_a_suspect_of_a_paused_queue(queue):
    bring(queue, Place.SUSPECT)
    queue.set_now(NOW + MINUTE)
    queue.run(store.pause_queue("default"))
    assert not wait(queue)
    queue.run(store.resume_queue("default"))
    assert wait(queue)


@pytest.mark.parametrize("closed", CLOSED)
def test_no_worker_makes_room_for_a_suspect_of_a_closed_source(queue, closed):
    bring(queue, Place.SUSPECT)
    queue.execute("update outlive.held set source = 'shop'")
    queue.execute("insert into outlive.sources (name) values ('shop')")
    queue.set_now(NOW + MINUTE)
    assert wait(queue)
    queue.execute(closed.encode())
    assert not wait(queue)
    assert queue.run(store.claim_suspect(ANNA, tasks=[TASK])) == []


def test_a_worker_makes_room_for_a_suspect_whose_source_admits_it_soon(queue):
    """Otherwise jobs that run all the time could take all that the source admits."""
    bring(queue, Place.SUSPECT)
    queue.execute("update outlive.held set source = 'shop'")
    queue.execute(
        "insert into outlive.sources (name, rate_limit_per_minute, full_at) values ('shop', 6, %s)",
        [NOW + MINUTE + timedelta(seconds=10)],
    )
    queue.set_now(NOW + MINUTE)
    assert wait(queue)


def test_a_suspect_that_has_waited_very_long_begins_beside_other_jobs(queue):
    scene = bring(queue, Place.SUSPECT)
    beside_others = store.claim_suspect(BERT, tasks=[TASK], after_s=600)
    queue.set_now(NOW + timedelta(seconds=599))
    assert queue.run(beside_others) == []
    queue.set_now(NOW + timedelta(seconds=600))
    [claimed] = queue.run(beside_others)
    assert (claimed.id, claimed.alone_s) == (scene.job, 0.0)
    assert queue.value("select alone from outlive.running") is False


def test_a_suspect_that_succeeds_is_done_and_one_that_fails_is_cleared(queue):
    for event, state in [("succeed", State.SUCCEEDED), ("fail", State.RETRYABLE)]:
        scene = bring(queue, Place.SUSPECT)
        [claimed] = queue.run(store.claim_suspect(BERT, tasks=[TASK]))
        assert (claimed.id, claimed.alone_s) == (scene.job, 5.0)
        end_by(queue, BERT, claimed.token, event)
        assert queue.state_of(scene.job) is state
    assert queue.counters(scene.job) == (1, 0, 0)


def test_a_worker_that_looks_up_its_jobs_sees_that_one_must_run_alone(queue):
    bring(queue, Place.SUSPECT)
    queue.run(store.claim_suspect(BERT, tasks=[TASK]))
    queue.make()
    queue.claim(worker=BERT, limit=1)
    assert [job.alone_s for job in queue.run(store.held_attempts(BERT))] == [5.0, 0.0]


def test_a_suspect_over_a_lowered_limit_of_crashes_is_quarantined_instead_of_started(queue):
    job = queue.make(options={"max_losses": 2})
    [claimed] = queue.claim(worker=ANNA, limit=1)
    end_by(queue, ANNA, claimed.token, "crash", after_s=0.0)
    queue.claim(worker=ANNA, limit=1)
    give_up(queue, ANNA)
    assert len(queue.run(store.reap())) == 1
    queue.register_task(max_crashes=1)
    assert queue.run(store.claim_suspect(BERT, tasks=[TASK])) == []
    assert queue.hold_of(job) == ("quarantined", "killed its process once (max_crashes = 1)")
    assert queue.counters(job) == (0, 1, 1)
