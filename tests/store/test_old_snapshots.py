"""Transactions at the levels repeatable read and serializable, which don't see what was committed since they began.

In each test the first session has such a transaction, and the second one acts meanwhile. What the two overlook of each
other, the reaper finds at its next check.
"""

import asyncio
from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from outlive.worker.following import Following
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup
from tests.driving.making import (
    claim_job,
    count,
    end,
    enqueue,
    make,
    make_finished,
    make_quarantined,
    run_job,
    state_of,
    values,
)
from tests.driving.schedules import let_sessions_begin_with
from tests.store.ring import Ring
from tests.store.ring import ring as ring
from tests.store.test_batches import add, close, counts, open_batch
from tests.store.test_dependencies import details_of, make_after, waiting_for

LEVELS = ["repeatable read", "serializable"]


@pytest.fixture(params=LEVELS)
def old(ring: Ring, request: pytest.FixtureRequest) -> Iterator[db.Connection]:
    """The first session, in a transaction at such a level. It takes its snapshot with its first statement."""
    ring.first.execute(f"begin isolation level {request.param}".encode())
    yield ring.first
    ring.first.execute("rollback")


def take_snapshot(connection: db.Connection) -> None:
    connection.execute("select from outlive.jobs limit 1")


def check(ring: Ring) -> int:
    """What the reaper does each second. It finds nothing the second time."""
    checked = db.run(ring.watcher, store.check_late_ends()) + db.run(ring.watcher, store.follow_late_ends())
    assert db.run(ring.watcher, store.check_late_ends()) + db.run(ring.watcher, store.follow_late_ends()) == 0
    assert count(ring.watcher, "end_checks") == 0
    return checked


def cancel(connection: db.Connection, job: UUID) -> None:
    db.run(connection, store.cancel([job]))


def replace(connection: db.Connection, _job: UUID) -> None:
    make(connection, dedupe_key="home", on_conflict="replace")


def complete(connection: db.Connection, job: UUID) -> None:
    connection.execute(
        "select outlive.complete_with_records(token, worker) from outlive.running where id = %s", [str(job)]
    )


Act = Callable[[db.Connection, UUID], None]
ENDS = pytest.mark.parametrize("finish", [cancel, replace, complete])


def place(connection: db.Connection, finish: Act) -> UUID:
    """Make a job where this way of ending it finds it."""
    job = make(connection, dedupe_key="home")
    if finish is complete:
        claim_job(connection, job)
    return job


@ENDS
def test_an_end_overlooks_no_job_that_was_enqueued_since_to_wait(ring: Ring, old: db.Connection, finish: Act) -> None:
    needed = place(ring.watcher, finish)
    take_snapshot(old)
    job = waiting_for(needed, on_failure="proceed")
    doomed = waiting_for(needed, on_failure="cancel")
    below = waiting_for(doomed.id, on_failure="cancel")
    enqueue(ring.second, [job, doomed, below])
    finish(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert state_of(ring.watcher, job.id) is State.PENDING
    others = State.PENDING if finish is complete else State.CANCELLED
    assert state_of(ring.watcher, doomed.id) is others


@ENDS
def test_an_end_overlooks_no_job_whose_enqueue_commits_before_it_does(
    ring: Ring, old: db.Connection, finish: Act
) -> None:
    needed = place(ring.watcher, finish)
    take_snapshot(old)
    ring.second.execute("begin")
    job = make_after(ring.second, needed, on_failure="proceed")
    finish(old, needed)
    ring.second.execute("commit")
    old.execute("commit")
    assert check(ring) == 2, "the note of the enqueue, and that of the end"
    assert state_of(ring.watcher, job) is State.PENDING


@ENDS
def test_an_enqueue_overlooks_no_end_that_commits_later(ring: Ring, old: db.Connection, finish: Act) -> None:
    needed = place(ring.watcher, finish)
    take_snapshot(old)
    finish(old, needed)
    job = make_after(ring.second, needed, on_failure="proceed")
    old.execute("commit")
    assert check(ring) == 2
    assert state_of(ring.watcher, job) is State.PENDING


def test_a_cancelled_chain_overlooks_no_link_that_was_added_since(ring: Ring, old: db.Connection) -> None:
    first = make(ring.watcher)
    second = make_after(ring.watcher, first, on_failure="cancel")
    take_snapshot(old)
    third = make_after(ring.second, second, on_failure="cancel")
    cancel(old, first)
    old.execute("commit")
    assert state_of(ring.watcher, third) is State.BLOCKED
    assert check(ring) == 1
    assert state_of(ring.watcher, third) is State.CANCELLED


def test_an_enqueue_overlooks_no_success_of_a_job_that_was_retried_since(ring: Ring, old: db.Connection) -> None:
    needed = make_finished(ring.watcher, Outcome.FAILED)
    take_snapshot(old)
    db.run(ring.second, store.retry([needed]))
    run_job(ring.second, needed)
    job = make_after(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert state_of(ring.watcher, job) is State.PENDING


def test_an_enqueue_overlooks_no_end_that_was_written_since(ring: Ring, old: db.Connection) -> None:
    needed = make(ring.watcher)
    take_snapshot(old)
    run_job(ring.second, needed)
    job = make_after(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert state_of(ring.watcher, job) is State.PENDING


def test_a_job_that_is_retried_before_the_reaper_looks_keeps_the_others_waiting(ring: Ring, old: db.Connection) -> None:
    needed = make(ring.watcher)
    take_snapshot(old)
    job = make_after(ring.second, needed, on_failure="cancel")
    cancel(old, needed)
    old.execute("commit")
    db.run(ring.watcher, store.retry([needed]))
    assert check(ring) == 1
    assert state_of(ring.watcher, job) is State.BLOCKED
    run_job(ring.watcher, needed)
    assert state_of(ring.watcher, job) is State.PENDING


def test_an_end_that_is_locked_is_checked_the_next_time_and_holds_up_no_other(ring: Ring, old: db.Connection) -> None:
    needed = [make(ring.watcher), make(ring.watcher)]
    take_snapshot(old)
    jobs = [make_after(ring.second, one, on_failure="proceed") for one in needed]
    for one in needed:
        cancel(old, one)
    old.execute("commit")
    with ring.second.transaction():
        ring.second.execute("select from outlive.held where id = %s for update", [jobs[0]])
        assert db.run(ring.watcher, store.follow_late_ends()) == 1
    assert [state_of(ring.watcher, one) for one in jobs] == [State.BLOCKED, State.PENDING]
    assert check(ring) == 1
    assert state_of(ring.watcher, jobs[0]) is State.PENDING


def test_a_quarantined_job_that_is_cancelled_tells_those_that_it_blocks(ring: Ring, old: db.Connection) -> None:
    needed = make_quarantined(ring.watcher)
    take_snapshot(old)
    job = make_after(ring.second, needed)
    check(ring)
    cancel(old, needed)
    old.execute("commit")
    assert check(ring) == 1
    assert "was cancelled" in details_of(ring.watcher, job)


def test_the_reaper_looks_at_each_check(ring: Ring, old: db.Connection, database_url: str) -> None:
    async def check_as_a_worker_does() -> None:
        session = Session(database_url)
        await Following(session, Wakeup()).follow()
        await session.close()

    needed = make(ring.watcher)
    take_snapshot(old)
    job = make_after(ring.second, needed, on_failure="proceed")
    cancel(old, needed)
    old.execute("commit")
    asyncio.run(check_as_a_worker_does())
    assert state_of(ring.watcher, job) is State.PENDING


def test_ordinary_transactions_leave_nothing_to_the_reaper(ring: Ring) -> None:
    needed = make(ring.watcher)
    make_after(ring.watcher, needed)
    run_job(ring.watcher, needed)
    assert count(ring.watcher, "end_checks") == 0


def test_jobs_are_not_pruned_because_it_is_unknown_whether_others_need_them(ring: Ring, old: db.Connection) -> None:
    needed = make_finished(ring.watcher)
    take_snapshot(old)
    make_after(ring.second, needed)
    with pytest.raises(psycopg.Error, match="READ COMMITTED"), old.transaction():
        db.run(old, store.prune_jobs([needed]))
    assert state_of(ring.watcher, needed) is State.SUCCEEDED


def test_workers_see_all_whatever_the_level_of_the_database_is(ring: Ring, database_url: str) -> None:
    let_sessions_begin_with(ring.watcher, "default_transaction_isolation", "serializable")
    for purpose in (db.CLAIMS, db.SERVICE, db.COMPLETIONS, db.FIRINGS):
        with db.connect(database_url, purpose) as connection:
            assert values(connection, "select outlive.sees_all()") == [True]
    with db.connect(database_url) as connection:
        assert values(connection, "select outlive.sees_all()") == [False]


# Batches


def test_a_batch_that_another_transaction_has_opened_cannot_be_closed(ring: Ring, old: db.Connection) -> None:
    """Not even by the transaction that wrote its row last, because a job of it has ended there."""
    batch = open_batch(ring.second)
    [job] = add(ring.second, batch)
    token = claim_job(ring.second, job).token
    take_snapshot(old)
    add(ring.second, batch)
    complete(old, job)
    with pytest.raises(psycopg.Error, match="READ COMMITTED"), old.transaction():
        close(old, batch)
    old.execute("commit")
    assert end(ring.watcher, Ended(token)) == [token]
    close(ring.watcher, batch)
    assert (counts(ring.watcher, batch).jobs, counts(ring.watcher, batch).succeeded) == (2, 1)


def test_an_end_in_a_batch_that_was_closed_since_is_refused(ring: Ring, old: db.Connection) -> None:
    batch = open_batch(ring.watcher)
    [job] = add(ring.watcher, batch)
    claim_job(ring.watcher, job)
    take_snapshot(old)
    close(ring.second, batch)
    with pytest.raises(psycopg.errors.SerializationFailure):
        complete(old, job)
    old.execute("rollback")
    assert not counts(ring.watcher, batch).done


def test_a_close_waits_for_an_end_and_then_the_batch_is_done(ring: Ring, old: db.Connection) -> None:
    batch = open_batch(ring.watcher)
    [job] = add(ring.watcher, batch)
    claim_job(ring.watcher, job)
    take_snapshot(old)
    complete(old, job)
    answer = ring.start(lambda second: close(second, batch))
    assert not answer.done()
    old.execute("commit")
    answer.result(10)
    assert counts(ring.watcher, batch).done
    assert check(ring) == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_retry_in_an_old_transaction_is_refused(connection: db.Connection, level: str) -> None:
    """It would not see that another one has retried the job already, and put it into two places."""
    job = make_finished(connection, Outcome.FAILED)
    with connection.transaction():
        connection.execute(f"set transaction isolation level {level}".encode())
        with pytest.raises(psycopg.Error, match="READ COMMITTED"), connection.transaction():
            db.run(connection, store.retry([job]))
    assert state_of(connection, job) is State.FAILED
