"""Claims while another session holds a snapshot open, so that vacuum may remove nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outlive import db
from outlive.lab.bench.backlogs import K, free_order
from outlive.lab.bench.draining import DrainOrder
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.stock import Stock

PARTS = 3
BUCKETS = 20
"""Of each part: the points of the curve."""

MUST = Bound("of reference", 0.60)


def _held_back(run: Run) -> Iterator[Figure]:
    """The hold has three parts with a look at the free database before each; the clock is that of the drain."""
    loaded, part_s = run.databases.loaded, run.sizes.hold_s / PARTS
    loaded.hold("held back", [])
    loaded.content = ""  # What is drained here leaves rows behind that nobody else should meet.
    order = DrainOrder(
        url=loaded.url, k=K, seconds=part_s, refill=Stock(count=run.sizes.stock), bucket_s=part_s / BUCKETS
    )
    run.one(replace(order, seconds=run.sizes.seconds))
    free, parts = [], []
    with db.connect(loaded.url) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from outlive.schema_version")
        for _ in range(PARTS):
            free.append(run.one(free_order(run)))
            parts.append(run.one(order))
    rates = [rate for part in parts for rate in part.rates]
    yield Figure(
        line="vacuum",
        name=f"claims, vacuum held back for {run.sizes.hold_s:.0f} s",
        unit="jobs/s",
        samples=[part.ended / part.busy_s for part in parts],
        reference=[one.ended / one.busy_s for one in free],
        bound=MUST,
        series=[(run.sizes.hold_s * (n + 1) / len(rates), rate) for n, rate in enumerate(rates)],
    )


LINES = [Line("vacuum", "claims while vacuum is held back", lambda _: 2 * PARTS + 1, _held_back)]
