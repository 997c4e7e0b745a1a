"""Claims beside a backlog: a thousand or a million jobs that are pending, or that are older and can't be claimed.

Each is measured alternately with the same drain in a database that holds nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from outlive.lab.bench.claims import K, free_drain
from outlive.lab.bench.draining import drain
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Benchmark, Run
from outlive.lab.bench.sizes import FULL, Sizes
from outlive.lab.bench.stock import Stock

OPEN, PAUSED = "b-open", "a-paused"
DAY_S = 86_400.0
MUST = Bound("of reference", 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The content of the loaded database. The drain takes `refill`, or the backlog itself."""

    name: str
    title: str
    stocks: Sequence[Stock]
    refill: Stock | None = None
    source: str = ""
    """The source of the jobs that it is compared with."""
    bound: Bound | None = MUST


def pending(sizes: Sizes) -> Backlog:
    stock = Stock(count=sizes.backlog)
    lasts = sizes.backlog >= 10 * sizes.stock
    title = f"{sizes.backlog:,} pending"
    return Backlog(name="pending", title=title, stocks=[stock], refill=None if lasts else stock)


def many_lanes(sizes: Sizes, per_lane: int) -> Backlog:
    stock = Stock(count=sizes.lanes * per_lane, source="source-", lanes=sizes.lanes)
    return Backlog(name="lanes", title=f"{sizes.lanes:,} lanes", stocks=[stock], source=OPEN, bound=None)


def backlogs(sizes: Sizes) -> list[Backlog]:
    count, half = sizes.backlog, sizes.backlog // 2
    ready = Stock(count=sizes.stock)
    return [
        Backlog(name="few", title=f"{sizes.few:,} pending", stocks=[], refill=Stock(count=sizes.few), bound=None),
        Backlog(
            name="future",
            title=f"{count:,} future jobs in front",
            stocks=[Stock(count=half, ahead_s=DAY_S, priority=0), Stock(count=count - half, ahead_s=DAY_S)],
            refill=ready,
        ),
        Backlog(
            name="paused",
            title=f"{count:,} of a paused source in front",
            stocks=[Stock(count=count, source=PAUSED, paused=True)],
            refill=Stock(count=sizes.stock, source=OPEN),
            source=OPEN,
        ),
        Backlog(
            name="foreign",
            title=f"{count:,} of foreign tasks in front",
            stocks=[Stock(count=count, task="another.app.task")],
            refill=ready,
        ),
        many_lanes(sizes, max(1, int(sizes.samples * sizes.seconds * 60_000 / sizes.lanes))),
        pending(sizes),  # The last one, because the benchmark `status` reads these jobs.
    ]


def _measured(name: str, run: Run) -> Iterator[Figure]:
    backlog = next(one for one in backlogs(run.sizes) if one.name == name)
    loaded = run.databases.loaded
    loaded.hold(backlog.name, backlog.stocks)
    beside = partial(drain, loaded.url, k=K, seconds=run.sizes.seconds, refill=backlog.refill)
    free, drained = run.in_turn(free_drain(run, source=backlog.source), beside)
    samples, reference = [one.per_s for one in drained], [one.per_s for one in free]
    yield Figure(name, f"claims, {backlog.title}", "jobs/s", samples, reference, backlog.bound)


BENCHMARKS = [
    Benchmark(one.name, f"claims, {one.title}", lambda sizes: 2 * sizes.samples, partial(_measured, one.name))
    for one in backlogs(FULL)
]
