"""Thousands of jobs that wait for one, one that waits for thousands, and a long chain."""

import time
from uuid import UUID

from outlive import store
from outlive.model import Ended
from outlive.states import State
from tests.driving.making import Queue
from tests.store.test_dependencies import details_of, make_after, waiting_for


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
    assert details_of(queue, job) == "waits for 1 job"
    token = queue.claim_job(last).token
    started = time.monotonic()
    queue.end(Ended(token))
    assert time.monotonic() - started < 2
    assert queue.state_of(job) is State.PENDING


def test_a_fan_out_of_10_000_is_released_bit_by_bit(queue):
    needed = queue.make()
    for _ in range(5):
        queue.enqueue([waiting_for(needed) for _ in range(2000)])
    queue.run_job(needed)
    assert queue.count("waiting") == 0
    queue.follow()
    assert queue.count("waiting") == 10_000
    assert queue.count("held") == 0


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


def test_a_chain_of_10_000_is_cancelled_to_its_end(queue):
    first, last = make_chain(queue, 10_000)
    started = time.monotonic()
    queue.run(store.cancel([first]))
    queue.follow()
    assert time.monotonic() - started < 15
    assert queue.state_of(last) is State.CANCELLED
    assert queue.count("attempts") == 10_001
    assert queue.count("held") == 0


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
