"""However many jobs wait for one, its end is written at once, and the reapers follow it up, some jobs at a time."""

import asyncio
import time
from itertools import pairwise
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Ended, new_job_id
from outlive.states import Outcome, State
from outlive.worker.fleet.leftovers import Leftovers
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup
from tests.driving.making import Queue
from tests.store.acting import assert_sound
from tests.store.ring import Ring
from tests.store.test_dependencies import details_of, make_after, waiting_for

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


def finish(queue: Queue, jobs: list[UUID], batch: int = 512) -> None:
    """Let all these jobs succeed, as a worker does that ends many at once."""
    left = set(jobs)
    while left:
        claimed = queue.claim(limit=batch)
        assert queue.end(*[Ended(one.token) for one in claimed]) == []
        left -= {one.id for one in claimed}


def test_a_fan_in_of_10_000_is_released_by_the_last_one(queue):
    needed = [one for _ in range(5) for one in queue.make_many(2000)]
    last = queue.make(priority=9)
    job = make_after(queue, *needed, last)
    finish(queue, needed)
    assert details_of(queue, job) == "waits for 1 of 10001 jobs"
    token = queue.claim_job(last).token
    started = time.monotonic()
    queue.end(Ended(token))
    assert time.monotonic() - started < 2
    assert queue.state_of(job) is State.PENDING


def make_chain(queue: Queue, links: int) -> tuple[UUID, UUID]:
    """A job, and jobs that wait for each other after it. Returns the first and the last one."""
    first = last = queue.make()
    for start in range(0, links, 2000):
        batch = []
        for _ in range(min(2000, links - start)):
            batch.append(waiting_for(last, on_failure="cancel"))
            last = batch[-1].id
        queue.enqueue(batch)
    return first, last


def test_a_short_chain_is_cancelled_in_one_step_whose_work_grows_with_its_length_only(queue):
    """The functions are called as often for a long chain as for a short one, and read as much for each link."""
    queue.execute("set track_functions = 'all'")
    calls = """select coalesce(sum(f.calls), 0) from pg_stat_xact_user_functions f join pg_proc p on p.oid = f.funcid
        join pg_language l on l.oid = p.prolang where l.lanname = 'plpgsql'"""
    work = []
    for links in (100, 400):
        first, _ = make_chain(queue, links)
        with queue.transaction():
            before = queue.value(calls)
            explained = queue.value(
                f"explain (analyze, buffers, format json) select outlive.cancel(array['{first}']::uuid[])"
            )
            blocks = explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"]
            work.append((queue.value(calls) - before, blocks))
    (few_calls, few_blocks), (many_calls, many_blocks) = work
    assert many_calls == few_calls
    assert many_blocks < 5 * few_blocks


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
