"""Jobs of a chain that are retried wait for each other again, and find the results of those that had succeeded."""

from uuid import UUID, uuid4

import pytest

from outlive import store
from outlive.model import Ended
from outlive.operations import By, run, verbs
from outlive.states import Outcome, State
from tests.driving.making import Queue, request
from tests.store.test_dependencies import details_of, fail, make_after, waiting_for

DAY_S = 86400.0


pytestmark = pytest.mark.usefixtures("sound")


def make_chain(queue: Queue, length: int) -> list[UUID]:
    """A chain of jobs that is cancelled, because its first one has failed."""
    chain = [request()]
    for _ in range(length - 1):
        chain.append(waiting_for(chain[-1].id, on_failure="cancel"))
    queue.enqueue(chain)
    fail(queue, chain[0].id)
    queue.follow()
    return [one.id for one in chain]


def states(queue: Queue, jobs: list[UUID]) -> list[str]:
    return [str(queue.state_of(one)) for one in jobs]


def inputs(queue: Queue, token: int) -> list[bytes | None]:
    return queue.values("select part from outlive.inputs(%s, 0, 0)", token)


def test_jobs_of_a_chain_that_are_retried_together_wait_for_each_other(queue):
    a, b, c = chain = make_chain(queue, 3)
    assert states(queue, chain) == ["failed", "cancelled", "cancelled"]
    changes = {one.id: one for one in queue.run(store.retry([c, a, b]))}
    assert [(changes[one].changed, changes[one].state) for one in chain] == [
        (True, "pending"),
        (True, "blocked"),
        (True, "blocked"),
    ]
    assert details_of(queue, c) == "waits for 1 job"
    assert queue.count("end_checks") == 0  # All of them were retried here, so none can have ended meanwhile.
    queue.end(Ended(queue.claim_job(a).token, result=b"1"))
    assert states(queue, chain) == ["succeeded", "pending", "blocked"]
    claimed = queue.claim_job(b)
    assert (claimed.attempt, inputs(queue, claimed.token)) == (2, [b"1"])
    queue.end(Ended(claimed.token, result=b"2"))
    assert inputs(queue, queue.claim_job(c).token) == [b"2"]


def test_a_chain_whose_first_job_fails_again_is_cancelled_again_and_may_be_retried_again(queue):
    chain = make_chain(queue, 3)
    for _ in range(2):
        queue.run(store.retry(chain))
        fail(queue, chain[0])
        assert states(queue, chain) == ["failed", "cancelled", "cancelled"]
    queue.run(store.retry(chain))
    for one in chain:
        queue.run_job(one)
    assert states(queue, chain) == ["succeeded"] * 3
    assert queue.count("dependencies") == 0


def test_a_job_that_is_retried_alone_runs_at_once(queue):
    a, b, c = make_chain(queue, 3)
    queue.run(store.retry([b]))
    assert states(queue, [a, b, c]) == ["failed", "pending", "cancelled"]
    assert inputs(queue, queue.claim_job(b).token) == [None]


def test_a_job_that_is_retried_after_one_that_it_needs_waits_for_it(queue):
    a, b, c = make_chain(queue, 3)
    queue.run(store.retry([a]))
    queue.claim_job(a)
    queue.run(store.retry([c]))  # The one between is still cancelled.
    queue.run(store.retry([b]))
    assert states(queue, [a, b, c]) == ["running", "blocked", "pending"]


def test_an_end_during_the_retry_of_a_job_that_needs_it_releases_that_job(queue, connect):
    a, b, _ = make_chain(queue, 3)
    queue.run(store.retry([a]))
    token = queue.claim_job(a).token
    other = connect()
    with queue.transaction():
        queue.run(store.retry([b]))
        other.end(Ended(token))
    assert states(queue, [a, b]) == ["succeeded", "blocked"]
    queue.follow()
    assert states(queue, [a, b]) == ["succeeded", "pending"]


def test_a_retried_job_waits_only_for_those_of_its_needs_that_are_retried(queue):
    done, bad = queue.make_many(2)
    job = make_after(queue, done, bad, on_failure="cancel")
    queue.run_job(done)
    fail(queue, bad)
    queue.run(store.retry([job, bad]))
    assert details_of(queue, job) == "waits for 1 of 2 jobs"
    queue.run_job(bad)
    assert queue.state_of(job) is State.PENDING


@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_however_a_job_was_cancelled_it_waits_again(queue, end):
    queue.set_now()
    needed = queue.make()
    job = queue.make(links=b'{"after": ["%s"], "expires_s": 60}' % str(needed).encode())
    if end == "cancel":
        queue.run(store.cancel([job]))
    else:
        queue.set_now(later_s=61)
        queue.run(store.cancel_expired())
    assert queue.state_of(job) is State.CANCELLED
    queue.run(store.retry([job]))
    assert queue.state_of(job) is State.BLOCKED
    queue.run_job(needed)
    assert queue.state_of(job) is State.PENDING


def test_retried_jobs_with_a_concurrency_key_queue_for_it_when_they_no_longer_wait(queue):
    links = b'{"after": ["%s"], "on_failure": "cancel", "key": "x"}'
    first = queue.make()
    second = queue.make(links=links % str(first).encode())
    fail(queue, first)
    queue.run(store.retry([first, second]))
    assert states(queue, [first, second]) == ["pending", "blocked"]
    assert queue.count("keyed_jobs") == 0
    queue.run_job(first)
    queue.follow()
    assert queue.state_of(second) is State.PENDING
    assert queue.values("select state from outlive.keyed_jobs") == ["admitted"]


def test_a_job_that_replaces_another_never_waits_in_a_circle_with_a_cancelled_one(queue):
    old = queue.make(dedupe_key="home")
    waits = make_after(queue, old)
    cancelled = make_after(queue, waits)
    queue.run(store.cancel([cancelled]))
    new = waiting_for(cancelled, dedupe_key="home", on_conflict="replace")
    queue.enqueue([new])
    queue.run(store.retry([cancelled]))
    queue.run(store.release([waits]))
    for one in (waits, cancelled, new.id):
        queue.run_job(one)


@pytest.mark.parametrize("by", ["ids", "filter"])
def test_a_chain_of_1000_jobs_is_retried_in_portions_and_runs_in_its_order(queue, by):
    """The portions are transactions of their own."""
    chain = make_chain(queue, 1000)
    assert queue.value("select count(*) from outlive.jobs where outlive.state_of(id) = 'cancelled'") == 999
    chosen = chain if by == "ids" else store.JobFilter(states=(State.FAILED, State.CANCELLED))
    tally = verbs.Tally(verbs.RETRY)
    run(verbs.act(tally, chosen, By("anna", uuid4())), queue.run)
    assert tally.changed == 1000
    assert queue.values("select id from outlive.waiting") == [chain[0]]
    for one in chain[:3]:
        queue.run_job(one)
    assert states(queue, chain[:5]) == ["succeeded"] * 3 + ["pending", "blocked"]


def test_a_thousand_jobs_that_need_one_wait_for_it_again(queue):
    needed = queue.make()
    queue.enqueue([waiting_for(needed, on_failure="cancel") for _ in range(1000)])
    fail(queue, needed)
    queue.follow()
    jobs = queue.values("select job_id from outlive.attempts where state = 'cancelled'")
    assert len(jobs) == 1000
    queue.run(store.retry([*jobs, needed]))
    assert queue.values("select id from outlive.waiting") == [needed]
    queue.run_job(needed)
    queue.follow()
    assert queue.count("waiting") == 1000


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_a_result_is_kept_until_the_job_that_may_need_it_has_succeeded_or_is_deleted(queue, outcome):
    queue.set_now()
    needed, other = queue.make_many(2)
    job, gone = make_after(queue, needed), make_after(queue, other)
    for one in (needed, other):
        queue.end(Ended(queue.claim_job(one).token, result=b"42"))
    for one in (job, gone):
        queue.run_job(one, outcome, final=True)
    queue.set_now(later_s=DAY_S)
    assert queue.run(store.prune_jobs([needed, other])) == 0
    assert queue.run(store.prune_finished(State.SUCCEEDED, keep_s=1.0))[0] == 0
    assert queue.run(store.prune_jobs([gone])) == 1
    queue.run(store.retry([job]))
    claimed = queue.claim_job(job)
    assert inputs(queue, claimed.token) == [b"42"]
    queue.end(Ended(claimed.token))
    assert queue.run(store.prune_jobs([needed, other])) == 2


def test_jobs_without_a_result_are_not_kept_for_those_that_were_cancelled_with_them(queue):
    queue.set_now()
    chain = make_chain(queue, 3)
    queue.set_now(later_s=DAY_S)
    assert queue.run(store.prune_jobs(chain[:1])) == 1
    queue.run(store.retry(chain))
    assert states(queue, chain[1:]) == ["pending", "blocked"]
    queue.run_job(chain[1])
    assert queue.run(store.prune_jobs(chain)) == 0
    queue.run_job(chain[2])
    assert queue.run(store.prune_jobs(chain)) == 2
    assert queue.count("dependencies") == 0
