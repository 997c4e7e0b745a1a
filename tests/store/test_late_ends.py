"""What is left to the reaper about the ends of jobs: however much it is, it holds up neither the reaper nor itself."""

import asyncio
import time
from uuid import UUID

from outlive import store
from outlive.states import Outcome, State
from outlive.worker.fleet.leftovers import Leftovers
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup
from tests.store.ring import Ring
from tests.store.ring import ring as ring
from tests.store.test_dependencies import make_after, waiting_for


def overlook_ends(ring: Ring, number: int) -> list[UUID]:
    """Cancel jobs in an old transaction, which overlooks the jobs that wait for them. Returns the latter."""
    needed = ring.watcher.make_many(number)
    ring.first.execute("begin isolation level repeatable read")
    ring.first.execute("select from outlive.jobs limit 1")
    jobs = [waiting_for(one, on_failure="proceed") for one in needed]
    ring.second.enqueue(jobs)
    for one in needed:
        ring.first.run(store.cancel([one]))
    ring.first.execute("commit")
    return [one.id for one in jobs]


def check(ring: Ring, batch: int = 100) -> int:
    return ring.watcher.run(store.follow_late_ends(batch))


def test_10_000_jobs_are_enqueued_soon_to_wait_for_one_that_has_failed(queue):
    needed = queue.make_finished(Outcome.FAILED)
    started = time.monotonic()
    queue.enqueue([waiting_for(needed, on_failure="cancel") for _ in range(10_000)])
    assert time.monotonic() - started < 12
    assert queue.count("attempts") == 10_001


def test_the_reaper_leaves_alone_what_has_long_been_blocked_by_the_same_job(ring):
    needed = ring.watcher.make_finished(Outcome.FAILED)
    job = make_after(ring.watcher, needed)
    row = "select (xmin, since)::text from outlive.held where id = %s"
    before = ring.watcher.value(row, job)
    ring.second.execute("begin")
    for _ in range(3):
        make_after(ring.second, needed)
    ring.second.execute("commit")
    assert ring.watcher.run(store.check_late_ends()) == 3
    assert ring.watcher.value(row, job) == before


def test_the_reaper_checks_thousands_of_ends_at_once(ring, database_url):
    async def check_as_a_worker_does() -> None:
        session = Session(database_url)
        await Leftovers(session, Wakeup()).follow_up()
        await session.close()

    overlook_ends(ring, 250)
    asyncio.run(check_as_a_worker_does())
    assert ring.watcher.count("end_checks") == 0
    assert ring.watcher.count("waiting") == 250


def test_many_locked_jobs_do_not_hold_up_the_reaper(ring):
    jobs = overlook_ends(ring, 30)
    with ring.second.transaction():
        ring.second.execute("select from outlive.held where id = any(%s) for update", [jobs])
        started = time.monotonic()
        assert check(ring) == 0
        assert time.monotonic() - started < 2
    assert check(ring) == 30


def test_ends_that_are_locked_for_long_let_others_go_first(ring):
    *locked, job = overlook_ends(ring, 3)
    with ring.second.transaction():
        ring.second.execute("select from outlive.held where id = any(%s) for update", [locked])
        assert check(ring, batch=2) == 0
        assert check(ring, batch=2) == 1
        assert ring.watcher.state_of(job) is State.PENDING
    assert check(ring) == 2
    assert {ring.watcher.state_of(one) for one in locked} == {State.PENDING}


def test_a_note_about_a_job_that_was_pruned_goes(ring):
    [job] = overlook_ends(ring, 1)
    ring.watcher.run(store.cancel([job]))
    needed = ring.watcher.values("select id from outlive.jobs where id <> %s", job)
    assert ring.watcher.value("select outlive.prune(%s)", [job, *needed]) == 2
    assert check(ring) == 1
    assert ring.watcher.count("end_checks") == 0
