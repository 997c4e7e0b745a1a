"""Expiry: a job that does not start in time does not run, and is cancelled with the reason."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from psycopg import errors

from outlive import State, store
from outlive.model import Ended
from outlive.states import Outcome
from tests.driving.making import NOON, Queue, request

HOUR_S = 3600.0


def expiring(after_s: float = HOUR_S, **more: object) -> bytes:
    return msgspec.json.encode({"expires_s": after_s, **more})


@pytest.fixture(autouse=True)
def at_noon(queue):
    queue.set_now()


def error_of(queue: Queue, job: UUID) -> Any:
    return queue.value("select error from outlive.attempts where job_id = %s order by attempt desc limit 1", job)


def test_a_job_that_is_too_old_is_not_claimed_and_is_cancelled_with_the_reason(queue):
    late, other = queue.make(links=expiring()), queue.make()
    queue.set_now(later_s=HOUR_S)
    assert [one.id for one in queue.claim()] == [other]
    assert queue.state_of(late) is State.PENDING
    queue.follow()
    assert queue.state_of(late) is State.CANCELLED
    assert error_of(queue, late) == "expired: it had to start by 2100-01-01 13:00:00 UTC"
    assert queue.count("expiring") == 0


def test_a_job_in_time_runs_and_may_take_longer_than_that(queue):
    job = queue.make(links=expiring())
    queue.set_now(later_s=HOUR_S - 1)
    [claimed] = queue.claim()
    queue.set_now(later_s=HOUR_S + 1)
    queue.follow()
    assert queue.state_of(job) is State.RUNNING
    queue.end(Ended(claimed.token))
    queue.follow()
    assert queue.state_of(job) is State.SUCCEEDED
    assert queue.count("expiring") == 0


def test_a_retry_is_a_start_too(queue):
    job = queue.make(links=expiring())
    queue.run_job(job, Outcome.FAILED, error="no", after_s=2 * HOUR_S)
    queue.set_now(later_s=3 * HOUR_S)
    assert queue.claim() == []
    queue.follow()
    assert queue.state_of(job) is State.CANCELLED
    assert queue.row_of(job)["failures"] == 1


def test_a_job_that_waits_for_another_or_for_a_slot_expires_too(queue):
    first = queue.make()
    blocked = queue.make(links=expiring(after=[str(first)]))
    last = queue.make(links=msgspec.json.encode({"after": [str(blocked)], "on_failure": "cancel"}))
    queue.make(links=msgspec.json.encode({"key": "k"}))
    keyed = queue.make(links=expiring(key="k"))
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    assert [queue.state_of(job) for job in (blocked, last, keyed)] == [State.CANCELLED] * 3
    assert queue.values("select met from outlive.dependencies") == [True, True]
    assert queue.count("keyed_jobs") == 1


def test_what_a_person_holds_or_retries_does_not_expire_any_more(queue):
    quarantined, late = queue.make_quarantined(links=expiring()), queue.make(links=expiring())
    queue.set_now(later_s=HOUR_S)
    queue.follow()
    assert queue.state_of(quarantined) is State.QUARANTINED
    queue.run(store.retry([late]))
    queue.run(store.release([quarantined]))
    assert {one.id for one in queue.claim()} == {late, quarantined}


def test_the_task_says_when_its_jobs_expire_unless_a_job_says_otherwise(queue):
    queue.register_task(expires_s=60.0)
    plain = queue.value("select outlive.enqueue('work')")
    [many, longer, ever] = requests = [request(), request(links=expiring(120)), request(links=expiring(0))]
    queue.enqueue(requests)
    rows = dict(queue.execute("select job_id, extract(epoch from expires_at - %s)::int from outlive.expiring", [NOON]))
    assert rows == {plain: 60, many.id: 60, longer.id: 120}
    assert ever.id not in rows


def test_repeating_an_enqueue_does_not_prolong_it(queue):
    one = request(links=expiring())
    queue.enqueue([one])
    queue.set_now(later_s=60)
    queue.enqueue([one])
    assert queue.values("select expires_at from outlive.expiring") == [queue.value("select %s + interval '1h'", NOON)]


def test_plain_sql_has_it_too_and_refuses_nonsense(queue):
    job = queue.value("select outlive.enqueue('work', expires => '10 minutes')")
    assert queue.row_of(job)["expires_at"] == queue.value("select %s + interval '10 minutes'", NOON)
    for wrong in ("'-1 second'", "'400 years'"):
        with pytest.raises(errors.DatabaseError, match="a job expires after 0 seconds to 300 years"):
            queue.execute(f"select outlive.enqueue('work', expires => {wrong})")


def test_a_locked_job_is_left_for_the_next_time(queue, connect):
    locked, free = queue.make(links=expiring()), queue.make(links=expiring())
    other = connect()
    queue.set_now(later_s=HOUR_S)
    with other.transaction():
        other.execute("select from outlive.waiting where id = %s for update", [locked])
        queue.follow()
        assert [queue.state_of(job) for job in (locked, free)] == [State.PENDING, State.CANCELLED]
    queue.follow()
    assert queue.state_of(locked) is State.CANCELLED


def test_a_pruned_job_leaves_nothing_behind(queue):
    job = queue.make(links=expiring())
    queue.run_job(job)
    assert queue.run(store.prune_jobs([job])) == 1
    assert queue.count("expiring") == 0
