"""Thousands of jobs that wait for one, one that waits for thousands, and a long chain."""

import time
from uuid import UUID

from outlive import db, store
from outlive.model import Ended
from outlive.states import State
from tests.driving.making import claim, claim_job, count, end, enqueue, make, make_many, run_job, state_of
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


def test_a_fan_out_of_10_000_is_released_at_once(connection: db.Connection) -> None:
    needed = make(connection)
    for _ in range(5):
        enqueue(connection, [waiting_for(needed) for _ in range(2000)])
    run_job(connection, needed)
    assert count(connection, "waiting") == 10_000
    assert count(connection, "held") == 0


def test_a_chain_of_10_000_is_cancelled_to_its_end(connection: db.Connection) -> None:
    first = make(connection)
    last = first
    for _ in range(5):
        batch = []
        for _ in range(2000):
            batch.append(waiting_for(last, on_failure="cancel"))
            last = batch[-1].id
        enqueue(connection, batch)
    started = time.monotonic()
    db.run(connection, store.cancel([first]))
    assert time.monotonic() - started < 60
    assert state_of(connection, last) is State.CANCELLED
    assert count(connection, "attempts") == 10_001
    assert count(connection, "held") == 0
