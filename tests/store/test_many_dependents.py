"""However many jobs wait for one, its end is written at once, and the reapers follow it up, some jobs at a time."""

from itertools import pairwise
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import Connect, claim_job, count, end, enqueue, follow, make, state_of, values
from tests.store.acting import assert_sound
from tests.store.test_dependencies import details_of, waiting_for

MANY = 1300
"""More than two parts of what is done at once."""
BECOMES = {"block": State.BLOCKED, "proceed": State.PENDING, "cancel": State.CANCELLED}


def run_with_dependents(connection: db.Connection, number: int, on_failure: str) -> tuple[int, list[UUID]]:
    """A running job and those that wait for it. Returns the token of the first."""
    needed = make(connection)
    jobs = [waiting_for(needed, on_failure=on_failure, queue="other") for _ in range(number)]
    enqueue(connection, jobs)
    return claim_job(connection, needed).token, [one.id for one in jobs]


def states(connection: db.Connection, jobs: list[UUID]) -> set[State]:
    return set(db.run(connection, store.statuses(jobs)).values())


@pytest.mark.parametrize("on_failure", ["block", "proceed", "cancel"])
def test_a_failed_job_with_many_dependents_ends_at_once_and_the_reapers_do_the_rest(
    connection: db.Connection, on_failure: str
) -> None:
    token, jobs = run_with_dependents(connection, MANY, on_failure)
    assert end(connection, Ended(token, Outcome.FAILED, final=True)) == []
    assert values(connection, "select count(*) from outlive.held where why = 'dependent' and details is null") == [MANY]
    parts = 0
    while db.run(connection, store.follow_late_ends()):
        parts += 1
        assert_sound_but_late(connection)
    assert parts == 3
    assert states(connection, jobs) == {BECOMES[on_failure]}
    if on_failure == "block":
        assert "failed: retry it" in details_of(connection, jobs[-1])
    assert count(connection, "end_checks") == 0
    assert_sound(connection)


def assert_sound_but_late(connection: db.Connection) -> None:
    """No job is in two places or in none. What waits for a job that has ended is noted."""
    assert values(connection, "select id from outlive.held intersect select id from outlive.waiting") == []


def test_a_success_releases_all_in_parts(connection: db.Connection) -> None:
    token, jobs = run_with_dependents(connection, MANY, "block")
    end(connection, Ended(token))
    assert states(connection, jobs) == {State.BLOCKED}
    assert db.run(connection, store.follow_late_ends()) == 1
    assert states(connection, jobs) == {State.BLOCKED, State.PENDING}
    follow(connection)
    assert states(connection, jobs) == {State.PENDING}
    assert_sound(connection)


def test_many_ends_with_few_dependents_each_are_left_to_the_reapers_too(connection: db.Connection) -> None:
    tokens, jobs = zip(*(run_with_dependents(connection, 60, "block") for _ in range(10)), strict=True)
    assert end(connection, *(Ended(token) for token in tokens)) == []
    assert count(connection, "waiting") == 0
    follow(connection)
    assert states(connection, [job for some in jobs for job in some]) == {State.PENDING}


@pytest.mark.parametrize("how", ["it fails", "it is cancelled"])
def test_a_long_chain_is_cancelled_in_parts(connection: db.Connection, how: str) -> None:
    head = make(connection)
    ids = [head, *(new_job_id() for _ in range(2 * MANY))]
    chain = [waiting_for(one, on_failure="cancel", queue="other", id=other) for one, other in pairwise(ids)]
    enqueue(connection, chain)
    if how == "it fails":
        end(connection, Ended(claim_job(connection, head).token, Outcome.FAILED, final=True))
    else:
        db.run(connection, store.cancel([head]))
    assert count(connection, "held") == 2 * MANY
    parts = 0
    while db.run(connection, store.follow_late_ends()):
        parts += 1
    assert 2 <= parts <= 6
    assert states(connection, ids[1:]) == {State.CANCELLED}
    assert_sound(connection)


def test_a_failed_job_that_is_retried_before_its_end_is_followed_up_cancels_no_more(connection: db.Connection) -> None:
    token, jobs = run_with_dependents(connection, MANY, "cancel")
    needed = values(connection, "select id from outlive.running")[0]
    end(connection, Ended(token, Outcome.FAILED, final=True))
    assert db.run(connection, store.follow_late_ends()) == 1
    db.run(connection, store.retry([needed]))
    follow(connection)
    found = [state_of(connection, job) for job in jobs]
    assert found.count(State.CANCELLED) == 500
    assert found.count(State.BLOCKED) == MANY - 500
    end(connection, Ended(claim_job(connection, needed).token))
    follow(connection)
    assert states(connection, jobs) == {State.CANCELLED, State.PENDING}
    assert_sound(connection)


def test_two_reapers_follow_up_the_same_end(connection: db.Connection, connect: Connect) -> None:
    token, jobs = run_with_dependents(connection, MANY, "cancel")
    end(connection, Ended(token, Outcome.FAILED, final=True))
    other = connect()
    with other.transaction():
        assert db.run(other, store.follow_late_ends()) == 1
        assert db.run(connection, store.follow_late_ends()) == 0, "the other one has it"
    other.execute("begin")
    assert db.run(other, store.follow_late_ends()) == 1
    other.execute("rollback")  # It died.
    follow(connection)
    assert states(connection, jobs) == {State.CANCELLED}
    assert count(connection, "attempts") == MANY + 1
    assert_sound(connection)


def test_a_job_that_waits_for_two_ends_with_many_dependents_is_released_by_both(connection: db.Connection) -> None:
    both = [make(connection) for _ in range(2)]
    jobs = [waiting_for(*both, queue="other") for _ in range(MANY)]
    enqueue(connection, jobs)
    tokens = [claim_job(connection, one).token for one in both]
    end(connection, Ended(tokens[0]))
    assert db.run(connection, store.follow_late_ends()) == 1
    end(connection, Ended(tokens[1]))
    follow(connection)
    assert states(connection, [one.id for one in jobs]) == {State.PENDING}
    assert_sound(connection)
