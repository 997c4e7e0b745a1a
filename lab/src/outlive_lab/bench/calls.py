"""Single calls: enqueue one by one and in bulk, the status of one job among a million, and the search for lanes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from uuid import UUID, uuid4

from outlive import db
from outlive.client.app import App
from outlive.worker.claiming.lanes import Lanes
from outlive_lab.bench.claims import backlogs
from outlive_lab.bench.draining import find_lanes
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.processes import Probing
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock

URL = "https://example.org/page"
WARM_UP = 20
PER_LANE = 20
SEARCHES = 10
_TABLE = "create table if not exists public.bare (like outlive.jobs including all)"
_INSERT = """
insert into public.bare (id, task, queue, args, priority, ready_at, fingerprint, created_at)
values (%s, 'outlive.bench.noop', 'bench', %s, 5, now(), '0123456789abcdef', now())
"""


def noop(url: str, number: int) -> None:
    """The task whose jobs are enqueued."""


@contextmanager
def _client(url: str) -> Iterator[App]:
    app = App(url)
    yield app
    app.connections.close()


def bare_inserts(url: str, seconds: float) -> Probing[float]:
    """The least that a durable enqueue can be: one row of `jobs`, alone in its transaction."""
    with db.connect(url) as connection:
        connection.execute(_TABLE)

        def insert(number: int) -> None:
            connection.execute(_INSERT, [uuid4(), f'{{"url": "{URL}", "number": {number}}}'], prepare=True)

        return (yield from _per_s(insert, seconds))


def enqueues(url: str, seconds: float) -> Probing[float]:
    """One job at a time through the client, from one thread."""
    with _client(url) as app:
        task = app.task(noop)
        return (yield from _per_s(lambda number: task.enqueue(URL, number), seconds))


def _per_s(call: Callable[[int], object], seconds: float) -> Probing[float]:
    for number in range(WARM_UP):
        call(number)
    yield
    times, began_s = 0, monotonic()
    while (took_s := monotonic() - began_s) < seconds:
        call(times)
        times += 1
    return times / took_s


def enqueue_many(url: str, count: int) -> Probing[float]:
    """Many jobs in one call. The time includes the packing of their arguments."""
    with _client(url) as app:
        task = app.task(noop)
        app.enqueue_many([task.job(URL, 0)])
        yield
        jobs = (task.job(URL, number) for number in range(count))
        return 1000 * count / took_ms(lambda: app.enqueue_many(jobs))


def read_statuses(url: str, ids: list[UUID]) -> Probing[list[float]]:
    """The milliseconds of each `job.status()`."""
    with _client(url) as app:
        for id in ids[:WARM_UP]:
            app.get_job(id).status()
        yield
        return [took_ms(app.get_job(id).status) for id in ids]


def search_lanes(url: str) -> Probing[list[float]]:
    """The milliseconds of each search, on a session with the settings of a worker's."""
    with db.connect(url, db.PINNED) as connection:
        search = partial(find_lanes, connection, Lanes())
        search()
        yield
        return [took_ms(search) for _ in range(SEARCHES)]


def took_ms(call: Callable[[], object]) -> float:
    began_s = monotonic()
    call()
    return (monotonic() - began_s) * 1000


def enqueue_one_by_one(run: Run) -> Iterator[Figure]:
    database, seconds = run.free, run.sizes.seconds
    database.hold("enqueued", [])
    bare, enqueued = run.in_turn(partial(bare_inserts, database.url, seconds), partial(enqueues, database.url, seconds))
    yield Figure("enqueue", "bare INSERT, one by one", "rows/s", bare)
    yield Figure("enqueue", "enqueue, one by one", "jobs/s", enqueued, bare, Bound("of reference", 0.75))


def enqueue_in_bulk(run: Run) -> Iterator[Figure]:
    database, count = run.free, run.sizes.bulk
    database.hold("enqueued", [])
    samples = run.repeated(partial(enqueue_many, database.url, count))
    yield Figure("enqueue-many", f"enqueue_many of {count:,}", "jobs/s", samples, bound=Bound("at least", 25_000))


def status(run: Run) -> Iterator[Figure]:
    loaded = run.loaded
    loaded.hold("pending", backlogs(run.sizes)["pending"].stocks)
    rows = loaded.connection.execute("select id from outlive.jobs tablesample bernoulli (5)").fetchall()
    ids = [id for (id,) in random.Random(1).sample(rows, min(run.sizes.reads, len(rows)))]
    taken = run.repeated(partial(read_statuses, loaded.url, ids))
    name = f"status of one job among {run.sizes.backlog:,}"
    medians = [statistics.median(one) for one in taken]
    slowest = [statistics.quantiles(one, n=100)[98] for one in taken]
    yield Figure("status", f"{name}, p50", "ms", medians, bound=Bound("at most", 2))
    yield Figure("status", f"{name}, p99", "ms", slowest)


def finding_lanes(run: Run) -> Iterator[Figure]:
    loaded, lanes = run.loaded, run.sizes.lanes
    loaded.hold("lanes to find", [Stock(count=lanes * PER_LANE, source="source-", lanes=lanes)])
    taken = run.repeated(partial(search_lanes, loaded.url))
    yield Figure("find-lanes", f"finding {lanes:,} lanes", "ms", [statistics.median(one) for one in taken])
