"""Enqueue: a bare INSERT as the reference, one job at a time through the client, and many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from outlive import db
from outlive.client.app import App
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run

URL = "https://example.org/page"
WARM_UP = 20
_TABLE = "create table if not exists bare (like outlive.jobs including all)"
_INSERT = """
insert into bare (id, task, queue, args, priority, ready_at, fingerprint, created_at)
values (%s, 'outlive.lab.bench.noop', 'bench', %s, 5, now(), '0123456789abcdef', now())
"""


def noop(url: str, number: int) -> None:
    """The task whose jobs are enqueued."""


@dataclass(frozen=True, slots=True)
class BareInserts:
    """The least that a durable enqueue could be: one row of `jobs`, alone in its transaction."""

    url: str
    seconds: float

    def prepare(self) -> Callable[[], float]:
        connection = db.connect(self.url)
        connection.execute(_TABLE)

        def insert(number: int) -> None:
            connection.execute(_INSERT, [uuid4(), f'{{"url": "{URL}", "number": {number}}}'], prepare=True)

        return _repeated(insert, self.seconds, connection.close)


@dataclass(frozen=True, slots=True)
class Enqueues:
    """One job at a time through the client, from one thread."""

    url: str
    seconds: float

    def prepare(self) -> Callable[[], float]:
        app = App(self.url)
        task = app.task(noop)

        def enqueue(number: int) -> None:
            task.enqueue(URL, number)

        return _repeated(enqueue, self.seconds, app.connections.close)


@dataclass(frozen=True, slots=True)
class EnqueueMany:
    """So many jobs in one call, the packing of their arguments included."""

    url: str
    count: int

    def prepare(self) -> Callable[[], float]:
        app = App(self.url)
        task = app.task(noop)
        app.enqueue_many([task.job(URL, 0)])

        def timed() -> float:
            began_s = monotonic()
            app.enqueue_many(task.job(URL, number) for number in range(self.count))
            took_s = monotonic() - began_s
            app.connections.close()
            return self.count / took_s

        return timed


def _repeated(once: Callable[[int], None], seconds: float, close: Callable[[], None]) -> Callable[[], float]:
    """Do it a few times now, and when it is timed as often as fits; that gives how often per second."""
    for number in range(WARM_UP):
        once(number)

    def timed() -> float:
        times, began_s = 0, monotonic()
        while (took_s := monotonic() - began_s) < seconds:
            once(times)
            times += 1
        close()
        return times / took_s

    return timed


def _one_by_one(run: Run) -> Iterator[Figure]:
    database, seconds = run.databases.free, run.sizes.seconds
    database.hold("enqueued", [])
    bare, enqueued = run.in_turn(BareInserts(database.url, seconds), Enqueues(database.url, seconds))
    yield Figure(line="enqueue", name="bare INSERT, one by one", unit="rows/s", samples=bare)
    yield Figure(
        line="enqueue",
        name="enqueue, one by one",
        unit="jobs/s",
        samples=enqueued,
        reference=bare,
        bound=Bound("of reference", 0.60),
    )


def _in_bulk(run: Run) -> Iterator[Figure]:
    database, count = run.databases.free, run.sizes.bulk
    database.hold("enqueued", [])
    samples = [run.one(EnqueueMany(database.url, count)) for _ in range(run.sizes.samples)]
    yield Figure(
        line="enqueue-many",
        name=f"enqueue_many of {count:,}",
        unit="jobs/s",
        samples=samples,
        bound=Bound("at least", 25_000),
    )


LINES = [
    Line("enqueue", "one job at a time, beside a bare INSERT", lambda sizes: 2 * sizes.samples, _one_by_one),
    Line("enqueue-many", "many jobs in one call", lambda sizes: sizes.samples, _in_bulk),
]
