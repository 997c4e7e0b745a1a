"""Waiting suspects: when a worker must make room for one, and when it must not."""

from datetime import timedelta

import pytest

from outlive import store
from tests.driving.making import TASK, Queue
from tests.store.acting import ANNA, BERT, NOW, Place, bring
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
