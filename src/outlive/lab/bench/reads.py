"""Looks: the status of one job among a million, and finding the lanes that have something."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from uuid import UUID

from outlive import db, store
from outlive.client.app import App
from outlive.lab.bench.backlogs import many_lanes, pending
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.stock import MOST_SOURCES, TASK

LOOKS_FOR_LANES = 10


@dataclass(frozen=True, slots=True)
class StatusLooks:
    """The milliseconds of many calls of `job.status()`, each for another job."""

    url: str
    ids: tuple[UUID, ...]

    def prepare(self) -> Callable[[], list[float]]:
        app = App(self.url)
        for id in self.ids[:20]:
            app.get_job(id).status()

        def timed() -> list[float]:
            took_ms = []
            for id in self.ids:
                began_s = monotonic()
                app.get_job(id).status()
                took_ms.append((monotonic() - began_s) * 1000)
            app.connections.close()
            return took_ms

        return timed


@dataclass(frozen=True, slots=True)
class LaneLooks:
    """The milliseconds of a few looks for lanes, on a session with pinned plans as a worker's."""

    url: str

    def prepare(self) -> Callable[[], list[float]]:
        connection = db.connect(self.url, db.PINNED)

        def look() -> None:
            db.run(connection, store.unsourced_lanes([TASK]))
            db.run(connection, store.sourced_lanes([TASK], batch=MOST_SOURCES))

        look()

        def timed() -> list[float]:
            took_ms = []
            with connection:
                for _ in range(LOOKS_FOR_LANES):
                    began_s = monotonic()
                    look()
                    took_ms.append((monotonic() - began_s) * 1000)
            return took_ms

        return timed


def _status(run: Run) -> Iterator[Figure]:
    loaded, crowd = run.databases.loaded, pending(run.sizes)
    loaded.hold(crowd.name, crowd.stocks)
    ids = _some_ids(loaded.connection, run.sizes.looks)
    taken = [run.one(StatusLooks(loaded.url, ids)) for _ in range(run.sizes.samples)]
    name = f"status of one job among {run.sizes.crowd:,}"
    yield Figure(
        line="status",
        name=f"{name}, p50",
        unit="ms",
        samples=[statistics.median(one) for one in taken],
        bound=Bound("at most", 2),
    )
    yield Figure(line="status", name=f"{name}, p99", unit="ms", samples=[_p99(one) for one in taken])


def _some_ids(connection: db.Connection, count: int) -> tuple[UUID, ...]:
    rows = connection.execute("select id from outlive.jobs tablesample bernoulli (5)").fetchall()
    return tuple(row[0] for row in random.Random(1).sample(rows, min(count, len(rows))))


def _p99(took_ms: list[float]) -> float:
    return statistics.quantiles(took_ms, n=100)[98]


def _lanes(run: Run) -> Iterator[Figure]:
    loaded, lanes = run.databases.loaded, run.sizes.lanes
    loaded.hold("lanes to find", many_lanes(run.sizes, 20).stocks)
    taken = [run.one(LaneLooks(loaded.url)) for _ in range(run.sizes.samples)]
    yield Figure(
        line="find-lanes",
        name=f"finding {lanes:,} lanes",
        unit="ms",
        samples=[statistics.median(one) for one in taken],
    )


LINES = [
    Line("status", "status of one job among a million", lambda sizes: sizes.samples, _status),
    Line("find-lanes", "finding a thousand lanes that have something", lambda sizes: sizes.samples, _lanes),
]
