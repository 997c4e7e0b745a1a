"""Thousands of jobs that wait for one, one that waits for thousands, and a long chain."""

import time
from uuid import UUID

from outlive import db, store
from outlive.model import Ended
from outlive.states import State
from tests.driving.making import (
    claim,
    claim_job,
    count,
    end,
    enqueue,
    follow,
    make,
    make_many,
    run_job,
    state_of,
    value,
)
from tests.store.test_dependencies import details_of, make_after, waiting_for


def finish(connection: db.Connection, jobs: list[UUID], batch: int = 512) -> None:
    """Let all these jobs succeed, as a worker does that ends many at once."""
    left = set(jobs)
    while left:
        claimed = claim(connection, limit=batch)
        assert end(connection, *[Ended(one.token) for one in claimed]) == []
        left -= {one.id for one in claimed}


def test_a_fan_in_of_10_000_is_released_by_the_last_one(connection: db.Connection) -> None:
    needed = [one for _ in range(5) for one in make_many(connection, 2000)]
    last = make(connection, priority=9)
    job = make_after(connection, *needed, last)
    finish(connection, needed)
    assert details_of(connection, job) == "waits for 1 job"
    token = claim_job(connection, last).token
    started = time.monotonic()
    end(connection, Ended(token))
    assert time.monotonic() - started < 2
    assert state_of(connection, job) is State.PENDING


def test_a_fan_out_of_10_000_is_released_bit_by_bit(connection: db.Connection) -> None:
    needed = make(connection)
    for _ in range(5):
        enqueue(connection, [waiting_for(needed) for _ in range(2000)])
    run_job(connection, needed)
    assert count(connection, "waiting") == 0
    follow(connection)
    assert count(connection, "waiting") == 10_000
    assert count(connection, "held") == 0


def make_chain(connection: db.Connection, links: int) -> tuple[UUID, UUID]:
    """A job, and jobs that wait for each other after it. Returns the first and the last one."""
    first = last = make(connection)
    for start in range(0, links, 2000):
        batch = []
        for _ in range(min(2000, links - start)):
            batch.append(waiting_for(last, on_failure="cancel"))
            last = batch[-1].id
        enqueue(connection, batch)
    return first, last


def test_a_chain_of_10_000_is_cancelled_to_its_end(connection: db.Connection) -> None:
    first, last = make_chain(connection, 10_000)
    started = time.monotonic()
    db.run(connection, store.cancel([first]))
    follow(connection)
    assert time.monotonic() - started < 15
    assert state_of(connection, last) is State.CANCELLED
    assert count(connection, "attempts") == 10_001
    assert count(connection, "held") == 0


def test_a_short_chain_is_cancelled_in_one_step_whose_work_grows_with_its_length_only(
    connection: db.Connection,
) -> None:
    """The functions are called as often for a long chain as for a short one, and read as much for each link."""
    connection.execute("set track_functions = 'all'")
    calls = """select coalesce(sum(f.calls), 0) from pg_stat_xact_user_functions f join pg_proc p on p.oid = f.funcid
        join pg_language l on l.oid = p.prolang where l.lanname = 'plpgsql'"""
    work = []
    for links in (100, 400):
        first, _ = make_chain(connection, links)
        with connection.transaction():
            before = value(connection, calls)
            explained = value(
                connection, f"explain (analyze, buffers, format json) select outlive.cancel(array['{first}']::uuid[])"
            )
            blocks = explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"]
            work.append((value(connection, calls) - before, blocks))
    (few_calls, few_blocks), (many_calls, many_blocks) = work
    assert many_calls == few_calls
    assert many_blocks < 5 * few_blocks
