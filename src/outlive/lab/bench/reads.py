"""Reads: the status of one job among a million, and the search for lanes that have jobs."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from uuid import UUID

from outlive import db
from outlive.client.app import App
from outlive.lab.bench.backlogs import many_lanes, pending
from outlive.lab.bench.draining import find_lanes
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.processes import Probing
from outlive.lab.bench.run import Benchmark, Run
from outlive.worker.lanes import Lanes

WARM_UP = 20
SEARCHES = 10


def read_statuses(url: str, ids: list[UUID]) -> Probing[list[float]]:
    """The milliseconds of each `job.status()`."""
    app = App(url)
    for id in ids[:WARM_UP]:
        app.get_job(id).status()
    yield
    took_ms = [_took_ms(app.get_job(id).status) for id in ids]
    app.connections.close()
    return took_ms


def search_lanes(url: str) -> Probing[list[float]]:
    """The milliseconds of each search, on a session with the settings of a worker's."""
    with db.connect(url, db.PINNED) as connection:
        search = partial(find_lanes, connection, Lanes())
        search()
        yield
        return [_took_ms(search) for _ in range(SEARCHES)]


def _took_ms(call: Callable[[], object]) -> float:
    began_s = monotonic()
    call()
    return (monotonic() - began_s) * 1000


def _status(run: Run) -> Iterator[Figure]:
    loaded, backlog = run.databases.loaded, pending(run.sizes)
    loaded.hold(backlog.name, backlog.stocks)
    rows = loaded.connection.execute("select id from outlive.jobs tablesample bernoulli (5)").fetchall()
    ids = [id for (id,) in random.Random(1).sample(rows, min(run.sizes.reads, len(rows)))]
    taken = [run.one(partial(read_statuses, loaded.url, ids)) for _ in range(run.sizes.samples)]
    name = f"status of one job among {run.sizes.backlog:,}"
    medians = [statistics.median(one) for one in taken]
    slowest = [statistics.quantiles(one, n=100)[98] for one in taken]
    yield Figure("status", f"{name}, p50", "ms", medians, bound=Bound("at most", 2))
    yield Figure("status", f"{name}, p99", "ms", slowest)


def _find_lanes(run: Run) -> Iterator[Figure]:
    loaded = run.databases.loaded
    loaded.hold("lanes to find", many_lanes(run.sizes, 20).stocks)
    taken = [run.one(partial(search_lanes, loaded.url)) for _ in range(run.sizes.samples)]
    yield Figure("find-lanes", f"finding {run.sizes.lanes:,} lanes", "ms", [statistics.median(one) for one in taken])


BENCHMARKS = [
    Benchmark("status", "status of one job among a million", lambda sizes: sizes.samples, _status),
    Benchmark("find-lanes", "finding a thousand lanes that have jobs", lambda sizes: sizes.samples, _find_lanes),
]
