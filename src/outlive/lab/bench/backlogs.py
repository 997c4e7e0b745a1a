"""Claims beside a crowd: a thousand and a million pending, and a million that can't be claimed in front of them.

Each is measured in turn with the same drain in a database that holds nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from outlive import db
from outlive.lab.bench.draining import DrainOrder
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.sizes import Sizes
from outlive.lab.bench.stock import Stock

K = 200
PAUSED = "a-paused"
DAY_S = 86_400.0
MUST = Bound("of reference", 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What lies in the loaded database, and what is drained of it: a stock that is filled up, or the crowd itself."""

    name: str
    title: str
    stocks: Sequence[Stock]
    refill: Stock | None = None
    prepare: Callable[[db.Connection], None] | None = None
    bound: Bound | None = MUST


def free_order(run: Run) -> DrainOrder:
    """The drain that everything is compared with: one connection, and nothing but its own jobs."""
    run.databases.free.hold("drained", [])
    return DrainOrder(url=run.databases.free.url, k=K, seconds=run.sizes.seconds, refill=Stock(count=run.sizes.stock))


def pending(sizes: Sizes) -> Crowd:
    return Crowd(
        name="pending",
        title=f"{sizes.crowd:,} pending",
        stocks=[Stock(count=sizes.crowd)],
        refill=None if sizes.crowd >= 10 * sizes.stock else Stock(count=sizes.crowd),
    )


def crowds(sizes: Sizes) -> list[Crowd]:
    count, half = sizes.crowd, sizes.crowd // 2
    ready = Stock(count=sizes.stock)
    open_source = Stock(count=sizes.stock, source="b-open")
    per_lane = max(1, int(sizes.samples * sizes.seconds * 60_000 / sizes.lanes))
    return [
        Crowd(name="few", title=f"{sizes.few:,} pending", stocks=[], refill=Stock(count=sizes.few), bound=None),
        pending(sizes),
        Crowd(
            name="future",
            title=f"{count:,} future jobs in front",
            stocks=[Stock(count=half, ahead_s=DAY_S, priority=0), Stock(count=count - half, ahead_s=DAY_S)],
            refill=ready,
        ),
        Crowd(
            name="paused",
            title=f"{count:,} of a paused source in front",
            stocks=[Stock(count=count, source=PAUSED)],
            refill=open_source,
            prepare=_pause,
        ),
        Crowd(
            name="foreign",
            title=f"{count:,} of foreign tasks in front",
            stocks=[Stock(count=count, task="another.app.task")],
            refill=ready,
        ),
        many_lanes(sizes, per_lane),
    ]


def many_lanes(sizes: Sizes, per_lane: int) -> Crowd:
    return Crowd(
        name="lanes",
        title=f"{sizes.lanes:,} lanes",
        stocks=[Stock(count=sizes.lanes * per_lane, source="source-", lanes=sizes.lanes)],
        bound=None,
    )


def _pause(connection: db.Connection) -> None:
    connection.execute("insert into outlive.sources (name, enabled) values (%s, false)", [PAUSED])


def _measured(name: str, run: Run) -> Iterator[Figure]:
    crowd = next(crowd for crowd in crowds(run.sizes) if crowd.name == name)
    loaded = run.databases.loaded
    loaded.hold(crowd.name, crowd.stocks, prepare=crowd.prepare)
    order = DrainOrder(url=loaded.url, k=K, seconds=run.sizes.seconds, refill=crowd.refill)
    free, drained = run.in_turn(free_order(run), order)
    yield Figure(
        line=name,
        name=f"claims, {crowd.title}",
        unit="jobs/s",
        samples=[one.ended / one.busy_s for one in drained],
        reference=[one.ended / one.busy_s for one in free],
        bound=crowd.bound,
    )


LINES = [
    Line(name, f"claims, {about}", lambda sizes: 2 * sizes.samples, partial(_measured, name))
    for name, about in (
        ("few", "a thousand pending"),
        ("future", "a million future jobs in front"),
        ("paused", "a million jobs of a paused source in front"),
        ("foreign", "a million jobs of foreign tasks in front"),
        ("lanes", "a thousand lanes, 64 offered at a time"),
        ("pending", "a million pending"),
    )
]
