"""Enqueuing a stream: any number of jobs in little memory, batch by batch."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import outlive
from outlive.client.options import BoundJob
from outlive.client.portions import PORTION_JOBS
from tests.client.example import add, take

Query = Callable[..., list[tuple[Any, ...]]]
MANY = 5000
"""Two whole batches and a part of a third."""


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_two_hundred_thousand_jobs_take_little_memory_and_keep_their_order(app, query):
    used: list[int] = []

    def jobs() -> Iterator[BoundJob[Any]]:
        for n in range(200_000):
            if n % 20_000 == 10_000:
                used.append(resident_bytes())
            yield take.job([n, "x" * 100])

    assert app.enqueue_stream(jobs()) == 200_000
    assert max(used) - used[0] < 20_000_000
    assert query("select count(*), count(distinct id) from outlive.waiting") == [(200_000, 200_000)]
    first = "select (args->0->>0)::int from outlive.waiting join outlive.jobs using (id) order by waiting.ready_at"
    assert query(f"{first} limit 3") == [(0,), (1,), (2,)]
    assert query(f"{first} desc limit 1") == [(199_999,)]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_batch_that_fails_leaves_the_ones_before_it_and_the_call_can_be_repeated(app, count, query, kind):
    taken = add.using(dedupe_key="taken").enqueue(0)
    jobs = [add.job(n) for n in range(MANY)]
    jobs[MANY - 1] = add.using(dedupe_key="taken", on_conflict="raise").job(0)

    def enqueue() -> int:
        return app.enqueue_stream(iter(jobs)) if kind == "sync" else asyncio.run(app.aenqueue_stream(iter(jobs)))

    with pytest.raises(outlive.DuplicateJob):
        enqueue()
    assert count() == 1 + 2 * PORTION_JOBS
    taken.cancel()
    assert enqueue() == MANY
    assert query("select count(*) from outlive.waiting") == [(MANY,)]


def test_a_stream_that_breaks_off_leaves_whole_batches(app, count):
    def jobs() -> Iterator[BoundJob[Any]]:
        for n in range(MANY):
            yield take.job({n} if n == MANY - 1 else n)

    with pytest.raises(outlive.BadArguments):
        app.enqueue_stream(jobs())
    assert count() == 2 * PORTION_JOBS


def test_a_stream_in_the_caller_s_transaction_is_gone_with_it(app, database_url, count):
    with psycopg.connect(database_url) as connection:
        assert app.enqueue_stream((add.job(n) for n in range(MANY)), connection=connection) == MANY
        assert connection.execute("select count(*) from outlive.jobs").fetchone() == (MANY,)
        assert count() == 0
        connection.rollback()
    assert count() == 0


def test_a_stream_may_be_empty(app, count):
    assert app.enqueue_stream([]) == asyncio.run(app.aenqueue_stream([])) == 0
    assert count() == 0
