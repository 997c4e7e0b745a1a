"""However many jobs wait for one, its end is written at once, and the reapers follow it up, some jobs at a time."""

from itertools import pairwise
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Ended, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import Queue
from tests.store.acting import assert_sound
from tests.store.test_dependencies import details_of, waiting_for

MANY = 1300
"""More than two parts of what is done at once."""
BECOMES = {"block": State.BLOCKED, "proceed": State.PENDING, "cancel": State.CANCELLED}


def run_with_dependents(queue: Queue, number: int, on_failure: str) -> tuple[int, list[UUID]]:
    """A running job and those that wait for it. Returns the token of the first."""
    needed = queue.make()
    jobs = [waiting_for(needed, on_failure=on_failure, queue="other") for _ in range(number)]
    queue.enqueue(jobs)
    return queue.claim_job(needed).token, [one.id for one in jobs]


def states(queue: Queue, jobs: list[UUID]) -> set[State]:
    return set(queue.run(store.statuses(jobs)).values())


@pytest.mark.parametrize("on_failure", ["block", "proceed", "cancel"])
def test_a_failed_job_with_many_dependents_ends_at_once_and_the_reapers_do_the_rest(queue, on_failure):
    token, jobs = run_with_dependents(queue, MANY, on_failure)
    assert queue.end(Ended(token, Outcome.FAILED, final=True)) == []
    assert queue.values("select count(*) from outlive.held where why = 'dependent' and details is null") == [MANY]
    parts = 0
    while queue.run(store.follow_late_ends()):
        parts += 1
        assert_sound_but_late(queue)
    assert parts == 3
    assert states(queue, jobs) == {BECOMES[on_failure]}
    if on_failure == "block":
        assert "failed: retry it" in details_of(queue, jobs[-1])
    assert queue.count("end_checks") == 0
    assert_sound(queue)


def assert_sound_but_late(queue: Queue) -> None:
    """No job is in two places or in none. What waits for a job that has ended is noted."""
    assert queue.values("select id from outlive.held intersect select id from outlive.waiting") == []


def test_a_success_releases_all_in_parts(queue):
    token, jobs = run_with_dependents(queue, MANY, "block")
    queue.end(Ended(token))
    assert states(queue, jobs) == {State.BLOCKED}
    assert queue.run(store.follow_late_ends()) == 1
    assert states(queue, jobs) == {State.BLOCKED, State.PENDING}
    queue.follow()
    assert states(queue, jobs) == {State.PENDING}
    assert_sound(queue)


def test_many_ends_with_few_dependents_each_are_left_to_the_reapers_too(queue):
    tokens, jobs = zip(*(run_with_dependents(queue, 60, "block") for _ in range(10)), strict=True)
    assert queue.end(*(Ended(token) for token in tokens)) == []
    assert queue.count("waiting") == 0
    queue.follow()
    assert states(queue, [job for some in jobs for job in some]) == {State.PENDING}


@pytest.mark.parametrize("how", ["it fails", "it is cancelled"])
def test_a_long_chain_is_cancelled_in_parts(queue, how):
    head = queue.make()
    ids = [head, *(new_job_id() for _ in range(2 * MANY))]
    chain = [waiting_for(one, on_failure="cancel", queue="other", id=other) for one, other in pairwise(ids)]
    queue.enqueue(chain)
    if how == "it fails":
        queue.end(Ended(queue.claim_job(head).token, Outcome.FAILED, final=True))
    else:
        queue.run(store.cancel([head]))
    assert queue.count("held") == 2 * MANY
    parts = 0
    while queue.run(store.follow_late_ends()):
        parts += 1
    assert 2 <= parts <= 6
    assert states(queue, ids[1:]) == {State.CANCELLED}
    assert_sound(queue)


def test_a_failed_job_that_is_retried_before_its_end_is_followed_up_cancels_no_more(queue):
    token, jobs = run_with_dependents(queue, MANY, "cancel")
    needed = queue.values("select id from outlive.running")[0]
    queue.end(Ended(token, Outcome.FAILED, final=True))
    assert queue.run(store.follow_late_ends()) == 1
    queue.run(store.retry([needed]))
    queue.follow()
    found = [queue.state_of(job) for job in jobs]
    assert found.count(State.CANCELLED) == 500
    assert found.count(State.BLOCKED) == MANY - 500
    queue.end(Ended(queue.claim_job(needed).token))
    queue.follow()
    assert states(queue, jobs) == {State.CANCELLED, State.PENDING}
    assert_sound(queue)


def test_two_reapers_follow_up_the_same_end(queue, connect):
    token, jobs = run_with_dependents(queue, MANY, "cancel")
    queue.end(Ended(token, Outcome.FAILED, final=True))
    other = connect()
    with other.transaction():
        assert other.run(store.follow_late_ends()) == 1
        assert queue.run(store.follow_late_ends()) == 0, "the other one has it"
    other.execute("begin")
    assert other.run(store.follow_late_ends()) == 1
    other.execute("rollback")  # It died.
    queue.follow()
    assert states(queue, jobs) == {State.CANCELLED}
    assert queue.count("attempts") == MANY + 1
    assert_sound(queue)


def test_a_job_that_waits_for_two_ends_with_many_dependents_is_released_by_both(queue):
    both = [queue.make() for _ in range(2)]
    jobs = [waiting_for(*both, queue="other") for _ in range(MANY)]
    queue.enqueue(jobs)
    tokens = [queue.claim_job(one).token for one in both]
    queue.end(Ended(tokens[0]))
    assert queue.run(store.follow_late_ends()) == 1
    queue.end(Ended(tokens[1]))
    queue.follow()
    assert states(queue, [one.id for one in jobs]) == {State.PENDING}
    assert_sound(queue)
