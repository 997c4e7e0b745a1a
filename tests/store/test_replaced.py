"""Jobs that wait for a job which another one replaces wait for that other one."""

from typing import Any
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import claim_job, end, enqueue, follow, make, make_finished, request, state_of, values
from tests.store.acting import assert_sound
from tests.store.test_dependencies import details_of, make_after, waiting_for


def replace(connection: db.Connection, **wanted: Any) -> UUID:
    return make(connection, dedupe_key="home", on_conflict="replace", **wanted)


@pytest.mark.parametrize("on_failure", ["block", "proceed", "cancel"])
def test_jobs_that_wait_for_a_replaced_job_wait_for_the_new_one_and_get_its_result(
    connection: db.Connection, on_failure: str
) -> None:
    old = make(connection, dedupe_key="home")
    job = make_after(connection, old, on_failure=on_failure, queue="other")
    new = replace(connection)
    assert (state_of(connection, old), state_of(connection, job)) == (State.CANCELLED, State.BLOCKED)
    assert values(connection, "select error from outlive.attempts") == [
        f"replaced by job {new}, which has its dedupe key"
    ]
    end(connection, Ended(claim_job(connection, new).token, result=b"42"))
    assert state_of(connection, job) is State.PENDING
    assert values(connection, "select after[1] from outlive.jobs where id = %s", job) == [new]
    assert_sound(connection)


def test_the_failure_of_the_new_job_counts_for_jobs_that_waited_for_the_old_one(connection: db.Connection) -> None:
    old = make(connection, dedupe_key="home")
    stays, goes = (make_after(connection, old, on_failure=one) for one in ("block", "cancel"))
    new = replace(connection)
    end(connection, Ended(claim_job(connection, new).token, Outcome.FAILED, final=True))
    assert f"job {new} failed" in details_of(connection, stays)
    assert state_of(connection, goes) is State.CANCELLED
    assert_sound(connection)


def test_a_job_for_which_the_new_one_waits_is_not_taken_along(connection: db.Connection) -> None:
    """Otherwise each of the two would wait for the other."""
    old = make(connection, dedupe_key="home")
    between = make_after(connection, old)
    other = make_after(connection, old, on_failure="proceed")
    below = make_after(connection, between)
    new = waiting_for(below, dedupe_key="home", on_conflict="replace")
    enqueue(connection, [new])
    assert "was cancelled" in details_of(connection, between)
    db.run(connection, store.release([between]))
    for one in (between, below, new.id, other):
        end(connection, Ended(claim_job(connection, one).token))
    assert_sound(connection)


def test_a_new_job_that_is_cancelled_at_once_is_followed_up(connection: db.Connection) -> None:
    failed = make_finished(connection, Outcome.FAILED)
    old = make(connection, dedupe_key="home")
    job = make_after(connection, old, on_failure="cancel")
    new = waiting_for(failed, on_failure="cancel", dedupe_key="home", on_conflict="replace")
    enqueue(connection, [new])
    follow(connection)
    assert (state_of(connection, new.id), state_of(connection, job)) == (State.CANCELLED, State.CANCELLED)
    assert_sound(connection)


def test_a_job_of_the_same_call_that_names_the_replaced_one_is_told(connection: db.Connection) -> None:
    old = make(connection, dedupe_key="home")
    new = request(dedupe_key="home", on_conflict="replace")
    job = waiting_for(old, new.id)
    enqueue(connection, [new, job])
    assert f"job {old} was cancelled" in details_of(connection, job.id)
    assert_sound(connection)
