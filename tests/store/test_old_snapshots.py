"""Transactions at the levels repeatable read and serializable, which don't see what was committed since they began.

In each test the first session has such a transaction, and the second one acts meanwhile. What the two overlook of each
other, the reaper finds at its next check.
"""

from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import Queue
from tests.driving.schedules import let_sessions_begin_with
from tests.store.ring import Ring
from tests.store.test_batches import add, close, counts, open_batch
from tests.store.test_dependencies import details_of, make_after, waiting_for

LEVELS = ["repeatable read", "serializable"]


@pytest.fixture(params=LEVELS)
def old(ring: Ring, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """The first session, in a transaction at such a level. It takes its snapshot with its first statement."""
    ring.first.execute(f"begin isolation level {request.param}".encode())
    yield ring.first
    ring.first.execute("rollback")


def take_snapshot(queue: Queue) -> None:
    queue.execute("select from outlive.jobs limit 1")


def check(ring: Ring) -> int:
    """What the reaper does each second. It finds nothing the second time."""
    checked = ring.watcher.run(store.check_late_ends()) + ring.watcher.run(store.follow_late_ends())
    assert ring.watcher.run(store.check_late_ends()) + ring.watcher.run(store.follow_late_ends()) == 0
    assert ring.watcher.count("end_checks") == 0
    return checked


def cancel(queue: Queue, job: UUID) -> None:
    queue.run(store.cancel([job]))


def replace(queue: Queue, _job: UUID) -> None:
    queue.make(dedupe_key="home", on_conflict="replace")


def complete(queue: Queue, job: UUID) -> None:
    queue.execute("select outlive.complete_with_records(token, worker) from outlive.running where id = %s", [str(job)])


Act = Callable[[Queue, UUID], None]
ENDS = pytest.mark.parametrize("finish", [cancel, replace, complete])


def place(queue: Queue, finish: Act) -> UUID:
    """Make a job where this way of ending it finds it."""
    job = queue.make(dedupe_key="home")
    if finish is complete:
        queue.claim_job(job)
    return job


@ENDS
def test_an_end_overlooks_no_job_that_was_enqueued_since_to_wait(ring, old, finish):
    needed = place(ring.watcher, finish)
    take_snapshot(old)
    job = waiting_for(needed, on_failure="proceed")
    doomed = waiting_for(needed, on_failure="cancel")
    below = waiting_for(doomed.id, on_failure="cancel")
    ring.second.enqueue([job, doomed, below])
    finish(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert ring.watcher.state_of(job.id) is State.PENDING
    others = State.PENDING if finish is complete else State.CANCELLED
    assert ring.watcher.state_of(doomed.id) is others


@ENDS
def test_an_end_overlooks_no_job_whose_enqueue_commits_before_it_does(ring, old, finish):
    needed = place(ring.watcher, finish)
    take_snapshot(old)
    ring.second.execute("begin")
    job = make_after(ring.second, needed, on_failure="proceed")
    finish(old, needed)
    ring.second.execute("commit")
    old.execute("commit")
    assert check(ring) == 2, "the note of the enqueue, and that of the end"
    assert ring.watcher.state_of(job) is State.PENDING


@ENDS
def test_an_enqueue_overlooks_no_end_that_commits_later(ring, old, finish):
    needed = place(ring.watcher, finish)
    take_snapshot(old)
    finish(old, needed)
    job = make_after(ring.second, needed, on_failure="proceed")
    old.execute("commit")
    assert check(ring) == 2
    assert ring.watcher.state_of(job) is State.PENDING


def test_a_cancelled_chain_overlooks_no_link_that_was_added_since(ring, old):
    first = ring.watcher.make()
    second = make_after(ring.watcher, first, on_failure="cancel")
    take_snapshot(old)
    third = make_after(ring.second, second, on_failure="cancel")
    cancel(old, first)
    old.execute("commit")
    assert ring.watcher.state_of(third) is State.BLOCKED
    assert check(ring) == 1
    assert ring.watcher.state_of(third) is State.CANCELLED


def test_an_enqueue_overlooks_no_end_that_was_written_since(ring, old):
    needed = ring.watcher.make()
    take_snapshot(old)
    ring.second.run_job(needed)
    job = make_after(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert ring.watcher.state_of(job) is State.PENDING


def test_a_job_that_is_retried_before_the_reaper_looks_keeps_the_others_waiting(ring, old):
    needed = ring.watcher.make()
    take_snapshot(old)
    job = make_after(ring.second, needed, on_failure="cancel")
    cancel(old, needed)
    old.execute("commit")
    ring.watcher.run(store.retry([needed]))
    assert check(ring) == 1
    assert ring.watcher.state_of(job) is State.BLOCKED
    ring.watcher.run_job(needed)
    assert ring.watcher.state_of(job) is State.PENDING


def test_an_end_that_is_locked_is_checked_the_next_time_and_holds_up_no_other(ring, old):
    needed = [ring.watcher.make(), ring.watcher.make()]
    take_snapshot(old)
    jobs = [make_after(ring.second, one, on_failure="proceed") for one in needed]
    for one in needed:
        cancel(old, one)
    old.execute("commit")
    with ring.second.transaction():
        ring.second.execute("select from outlive.held where id = %s for update", [jobs[0]])
        assert ring.watcher.run(store.follow_late_ends()) == 1
    assert [ring.watcher.state_of(one) for one in jobs] == [State.BLOCKED, State.PENDING]
    assert check(ring) == 1
    assert ring.watcher.state_of(jobs[0]) is State.PENDING


def test_a_quarantined_job_that_is_cancelled_tells_those_that_it_blocks(ring, old):
    needed = ring.watcher.make_quarantined()
    take_snapshot(old)
    job = make_after(ring.second, needed)
    check(ring)
    cancel(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert "was cancelled" in details_of(ring.watcher, job)


def test_ordinary_transactions_leave_nothing_to_the_reaper(ring):
    needed = ring.watcher.make()
    make_after(ring.watcher, needed)
    ring.watcher.run_job(needed)
    assert ring.watcher.count("end_checks") == 0


def test_jobs_are_not_pruned_because_it_is_unknown_whether_others_need_them(ring, old):
    needed = ring.watcher.make_finished()
    take_snapshot(old)
    make_after(ring.second, needed)
    with pytest.raises(psycopg.Error, match="READ COMMITTED"), old.transaction():
        old.run(store.prune_jobs([needed]))
    assert ring.watcher.state_of(needed) is State.SUCCEEDED


def test_workers_see_all_whatever_the_level_of_the_database_is(ring, database_url):
    let_sessions_begin_with(ring.watcher, "default_transaction_isolation", "serializable")
    for purpose in (db.CLAIMS, db.SERVICE, db.COMPLETIONS, db.FIRINGS):
        with Queue.at(database_url, purpose) as connection:
            assert connection.values("select outlive.sees_all()") == [True]
    with Queue.at(database_url) as connection:
        assert connection.values("select outlive.sees_all()") == [False]


# Batches


def test_a_batch_that_another_transaction_has_opened_cannot_be_closed(ring, old):
    """Not even by the transaction that wrote its row last, because a job of it has ended there."""
    batch = open_batch(ring.second)
    [job] = add(ring.second, batch)
    token = ring.second.claim_job(job).token
    take_snapshot(old)
    add(ring.second, batch)
    complete(old, job)
    with pytest.raises(psycopg.Error, match="READ COMMITTED"), old.transaction():
        close(old, batch)
    old.execute("commit")
    assert ring.watcher.end(Ended(token)) == [token]
    close(ring.watcher, batch)
    assert (counts(ring.watcher, batch).jobs, counts(ring.watcher, batch).succeeded) == (2, 1)


def test_an_end_in_a_batch_that_was_closed_since_is_refused(ring, old):
    batch = open_batch(ring.watcher)
    [job] = add(ring.watcher, batch)
    ring.watcher.claim_job(job)
    take_snapshot(old)
    close(ring.second, batch)
    with pytest.raises(psycopg.errors.SerializationFailure):
        complete(old, job)
    old.execute("rollback")
    assert not counts(ring.watcher, batch).done


def test_a_close_waits_for_an_end_and_then_the_batch_is_done(ring, old):
    batch = open_batch(ring.watcher)
    [job] = add(ring.watcher, batch)
    ring.watcher.claim_job(job)
    take_snapshot(old)
    complete(old, job)
    answer = ring.start(lambda second: close(second, batch))
    assert not answer.done()
    old.execute("commit")
    answer.result(10)
    assert counts(ring.watcher, batch).done
    assert check(ring) == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_retry_in_an_old_transaction_is_refused(queue, level):
    """It would not see that another one has retried the job already, and put it into two places."""
    job = queue.make_finished(Outcome.FAILED)
    with queue.transaction():
        queue.execute(f"set transaction isolation level {level}".encode())
        with pytest.raises(psycopg.Error, match="READ COMMITTED"), queue.transaction():
            queue.run(store.retry([job]))
    assert queue.state_of(job) is State.FAILED
