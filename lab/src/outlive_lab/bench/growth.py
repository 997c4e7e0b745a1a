"""`./run bench --growth`: how the rate of workers changes as jobs, workers, lanes, payloads and apps grow.

Each curve is measured with `outlive worker` as README has it, with two slots and no-op jobs in warm processes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from outlive_lab.bench import jobs
from outlive_lab.bench.forking import forks
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock
from outlive_lab.bench.worker import SMALL, Worker, command_s, starting, working

BALLAST = "outlive_lab.bench.ballast:app"
SLOTS, FRESH_SLOTS = 2, 8
CHUNK = 500_000
"""Larger loads are written in pieces, so that progress is seen."""
WHOLE = 100_000
"""Up to this many pending jobs are drained as a whole; of more jobs, only for some seconds."""
SAMPLES = 3
LONG_AGO_S = 7200.0
PAYLOAD_BYTES = 200_000_000
"""The most that all payloads of one point take together."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The points of each curve, and how many seconds each takes."""

    seconds: float
    drained: int
    """How many jobs a point drains that needs no particular number."""
    pending: Sequence[int]
    finished: Sequence[int]
    workers: Sequence[int]
    lanes: Sequence[int]
    payload_bytes: Sequence[int]
    app_mb: Sequence[int]


FULL = Sizes(
    seconds=3.0,
    drained=100_000,
    pending=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    finished=(0, 200_000, 1_000_000, 10_000_000),
    workers=(1, 2, 4, 8, 16),
    lanes=(1, 10, 100, 1_000, 10_000),
    payload_bytes=(100, 1_000, 10_000, 100_000, 1_000_000),
    app_mb=(0, 30, 100, 300, 1_000),
)
QUICK = Sizes(
    seconds=1.0,
    drained=20_000,
    pending=(1_000, 10_000),
    finished=(0, 40_000),
    workers=(1, 2),
    lanes=(1, 100),
    payload_bytes=(100, 10_000),
    app_mb=(0, 30),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: the curve, where on its axis, and the value."""

    curve: str
    at: int
    value: float


Say = Callable[[str], None]
Growth = Callable[[Run, Sizes, Say], Iterator[Point]]


def _load(run: Run, stock: Stock, say: Say) -> None:
    """Add jobs, many of them in pieces."""
    for done in range(0, stock.count, CHUNK):
        say(f"loading {stock.count:,} jobs: {done / stock.count:.0%}")
        stock.put(run.loaded.connection, min(CHUNK, stock.count - done))
    run.loaded.vacuum()


def pending(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    for count in sizes.pending:
        stock = Stock(count=count, task=jobs.warm.name)
        if count <= WHOLE:
            say(f"{count:,} pending")
            with working(run, SMALL, slots=SLOTS) as worker:
                yield Point("pending", count, statistics.median(worker.drain(stock) for _ in range(SAMPLES)))
            continue
        Worker(run.loaded, []).clear()
        _load(run, stock, say)
        say(f"{count:,} pending")
        with starting(run, SMALL, slots=SLOTS) as worker:
            yield Point("pending", count, worker.pace(sizes.seconds))


def finished(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    Worker(run.loaded, []).clear()
    there = 0
    for count in sizes.finished:
        _load(run, Stock(count=count - there, finished=True, ahead_s=-LONG_AGO_S), say)
        stock = Stock(count=2 * sizes.drained, task=jobs.warm.name)
        _load(run, stock, say)
        say(f"{count:,} finished")
        with starting(run, SMALL, slots=SLOTS) as worker:
            yield Point("finished", count, worker.pace(sizes.seconds))
            worker.wait(stock.count)
        there = count + stock.count
        for words in (["stats"], ["jobs", "--state", "failed"]):
            taken_s = statistics.median(command_s(run.loaded.url, *words) for _ in range(SAMPLES))
            yield Point(f"outlive {words[0]}", count, taken_s)


def workers(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    for count in sizes.workers:
        say(f"{count} workers")
        with working(run, SMALL, slots=SLOTS, workers=count) as several:
            stock = Stock(count=sizes.drained, task=jobs.warm.name)
            yield Point("workers", count, statistics.median(several.drain(stock) for _ in range(SAMPLES)))


def lanes(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    """Each queue has one lane."""
    for count in sizes.lanes:
        say(f"{count:,} lanes")
        with working(run, SMALL, slots=SLOTS) as worker:
            stock = Stock(count=sizes.drained, task=jobs.warm.name, queues=count)
            yield Point("lanes", count, worker.pace(sizes.seconds, stock))


def sources(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    """Each source has one lane."""
    for count in sizes.lanes:
        say(f"{count:,} sources")
        stock = Stock(count=sizes.drained, task=jobs.warm.name, source="source-", lanes=count)
        with working(run, SMALL, slots=SLOTS) as worker:
            yield Point("sources", count, worker.pace(sizes.seconds, stock))


def payload(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    letters = random.Random(1)  # Text that can't be compressed.
    for size in sizes.payload_bytes:
        say(f"payloads of {size:,} bytes")
        count = min(sizes.drained, PAYLOAD_BYTES // size)
        stock = Stock(count=count, task=jobs.warm.name, url=letters.randbytes(size // 2).hex())
        with working(run, SMALL, slots=SLOTS) as worker:
            yield Point("payload", size, worker.drain(stock))


def app(run: Run, sizes: Sizes, say: Say) -> Iterator[Point]:
    for size_mb in sizes.app_mb:
        say(f"an app of {size_mb:,} MB")
        more = {"BENCH_BALLAST_MB": str(size_mb)}
        per_s, _ = run.one(partial(forks, BALLAST, sizes.seconds, more))
        yield Point("bare forks", size_mb, per_s)
        with working(run, BALLAST, slots=FRESH_SLOTS, more=more) as worker:
            stock = Stock(count=max(50, sizes.drained // 100), task=jobs.fresh.name)
            yield Point("fresh jobs", size_mb, worker.drain(stock))


GROWTHS: dict[str, Growth] = {
    "pending": pending,
    "finished": finished,
    "workers": workers,
    "lanes": lanes,
    "sources": sources,
    "payload": payload,
    "app": app,
}
PANELS: dict[str, tuple[str, Sequence[str]]] = {
    "pending": ("pending jobs", ["pending"]),
    "finished": ("finished jobs", ["finished"]),
    "commands": ("finished jobs", ["outlive stats", "outlive jobs"]),
    "workers": ("workers with two slots each", ["workers"]),
    "lanes": ("lanes that have jobs", ["lanes", "sources"]),
    "payload": ("bytes of arguments per job", ["payload"]),
    "app": ("megabytes that the app holds", ["bare forks", "fresh jobs"]),
}
"""Each panel of the picture: its axis, and its curves. Commands take seconds; all other values are rates."""
