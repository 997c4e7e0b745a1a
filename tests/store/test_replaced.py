"""Jobs that wait for a job which another one replaces wait for that other one."""

from typing import Any
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import Queue, request
from tests.store.acting import assert_sound
from tests.store.test_dependencies import details_of, make_after, waiting_for


def replace(connection: Queue, **wanted: Any) -> UUID:
    return connection.make(dedupe_key="home", on_conflict="replace", **wanted)


@pytest.mark.parametrize("on_failure", ["block", "proceed", "cancel"])
def test_jobs_that_wait_for_a_replaced_job_wait_for_the_new_one_and_get_its_result(queue, on_failure):
    old = queue.make(dedupe_key="home")
    job = make_after(queue, old, on_failure=on_failure, queue="other")
    new = replace(queue)
    assert (queue.state_of(old), queue.state_of(job)) == (State.CANCELLED, State.BLOCKED)
    assert queue.values("select error from outlive.attempts") == [f"replaced by job {new}, which has its dedupe key"]
    queue.end(Ended(queue.claim_job(new).token, result=b"42"))
    assert queue.state_of(job) is State.PENDING
    assert queue.values("select after[1] from outlive.jobs where id = %s", job) == [new]
    assert_sound(queue)


def test_the_failure_of_the_new_job_counts_for_jobs_that_waited_for_the_old_one(queue):
    old = queue.make(dedupe_key="home")
    stays, goes = (make_after(queue, old, on_failure=one) for one in ("block", "cancel"))
    new = replace(queue)
    queue.end(Ended(queue.claim_job(new).token, Outcome.FAILED, final=True))
    assert f"job {new} failed" in details_of(queue, stays)
    assert queue.state_of(goes) is State.CANCELLED
    assert_sound(queue)


def test_a_job_for_which_the_new_one_waits_is_not_taken_along(queue):
    """Otherwise each of the two would wait for the other."""
    old = queue.make(dedupe_key="home")
    between = make_after(queue, old)
    other = make_after(queue, old, on_failure="proceed")
    below = make_after(queue, between)
    new = waiting_for(below, dedupe_key="home", on_conflict="replace")
    queue.enqueue([new])
    assert "was cancelled" in details_of(queue, between)
    queue.run(store.release([between]))
    for one in (between, below, new.id, other):
        queue.end(Ended(queue.claim_job(one).token))
    assert_sound(queue)


def test_a_new_job_that_is_cancelled_at_once_is_followed_up(queue):
    failed = queue.make_finished(Outcome.FAILED)
    old = queue.make(dedupe_key="home")
    job = make_after(queue, old, on_failure="cancel")
    new = waiting_for(failed, on_failure="cancel", dedupe_key="home", on_conflict="replace")
    queue.enqueue([new])
    queue.follow()
    assert (queue.state_of(new.id), queue.state_of(job)) == (State.CANCELLED, State.CANCELLED)
    assert_sound(queue)


def test_a_job_of_the_same_call_that_names_the_replaced_one_is_told(queue):
    old = queue.make(dedupe_key="home")
    new = request(dedupe_key="home", on_conflict="replace")
    job = waiting_for(old, new.id)
    queue.enqueue([new, job])
    assert f"job {old} was cancelled" in details_of(queue, job.id)
    assert_sound(queue)
