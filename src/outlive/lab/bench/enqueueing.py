"""Enqueue: one job at a time beside a bare INSERT, and many jobs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from uuid import uuid4

from outlive import db
from outlive.client.app import App
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.processes import Probing
from outlive.lab.bench.run import Benchmark, Run

URL = "https://example.org/page"
WARM_UP = 20
_TABLE = "create table if not exists bare (like outlive.jobs including all)"
_INSERT = """
insert into bare (id, task, queue, args, priority, ready_at, fingerprint, created_at)
values (%s, 'outlive.bench.noop', 'bench', %s, 5, now(), '0123456789abcdef', now())
"""


def noop(url: str, number: int) -> None:
    """The task whose jobs are enqueued."""


def bare_inserts(url: str, seconds: float) -> Probing[float]:
    """The least that a durable enqueue can be: one row of `jobs`, alone in its transaction."""
    with db.connect(url) as connection:
        connection.execute(_TABLE)

        def insert(number: int) -> None:
            connection.execute(_INSERT, [uuid4(), f'{{"url": "{URL}", "number": {number}}}'], prepare=True)

        return (yield from _repeated(insert, seconds))


def enqueues(url: str, seconds: float) -> Probing[float]:
    """One job at a time through the client, from one thread."""
    app = App(url)
    task = app.task(noop)
    per_s = yield from _repeated(lambda number: task.enqueue(URL, number), seconds)
    app.connections.close()
    return per_s


def enqueue_many(url: str, count: int) -> Probing[float]:
    """Many jobs in one call. The time includes the packing of their arguments."""
    app = App(url)
    task = app.task(noop)
    app.enqueue_many([task.job(URL, 0)])
    yield
    began_s = monotonic()
    app.enqueue_many(task.job(URL, number) for number in range(count))
    took_s = monotonic() - began_s
    app.connections.close()
    return count / took_s


def _repeated(once: Callable[[int], object], seconds: float) -> Probing[float]:
    """How often per second a call succeeds."""
    for number in range(WARM_UP):
        once(number)
    yield
    times, began_s = 0, monotonic()
    while (took_s := monotonic() - began_s) < seconds:
        once(times)
        times += 1
    return times / took_s


def _one_by_one(run: Run) -> Iterator[Figure]:
    database, seconds = run.databases.free, run.sizes.seconds
    database.hold("enqueued", [])
    bare, enqueued = run.in_turn(partial(bare_inserts, database.url, seconds), partial(enqueues, database.url, seconds))
    yield Figure("enqueue", "bare INSERT, one by one", "rows/s", bare)
    yield Figure("enqueue", "enqueue, one by one", "jobs/s", enqueued, bare, Bound("of reference", 0.60))


def _in_bulk(run: Run) -> Iterator[Figure]:
    database, count = run.databases.free, run.sizes.bulk
    database.hold("enqueued", [])
    samples = [run.one(partial(enqueue_many, database.url, count)) for _ in range(run.sizes.samples)]
    yield Figure("enqueue-many", f"enqueue_many of {count:,}", "jobs/s", samples, bound=Bound("at least", 25_000))


BENCHMARKS = [
    Benchmark("enqueue", "one job at a time, beside a bare INSERT", lambda sizes: 2 * sizes.samples, _one_by_one),
    Benchmark("enqueue-many", "many jobs in one call", lambda sizes: sizes.samples, _in_bulk),
]
