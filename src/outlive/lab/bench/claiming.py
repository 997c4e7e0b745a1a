"""End and claim: how many attempts one, two and eight connections end and begin per second, by the size of a turn."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.lab.bench.draining import DrainOrder, filled_up
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.sizes import Sizes
from outlive.lab.bench.stock import Stock

KS = (1, 8, 64, 200, 512)
CONNECTIONS = (1, 2, 8)
MUST = {(200, 1): Bound("at least", 30_000), (512, 1): Bound("at least", 30_000)}
# More than any machine known drains in a second with turns of that size: the stock must not run out.
ENOUGH_PER_S = {1: 15_000, 8: 45_000, 64: 90_000, 200: 110_000, 512: 120_000}


def _cells(run: Run) -> Iterator[Figure]:
    database, sizes = run.databases.free, run.sizes
    database.hold("drained", [])
    for k in KS:
        stock = Stock(count=int(ENOUGH_PER_S[k] * sizes.seconds) + 8 * 4 * k)
        for connections in CONNECTIONS:
            order = DrainOrder(url=database.url, k=k, seconds=sizes.seconds)
            samples = []
            for _ in range(sizes.samples):
                filled_up(database.connection, stock)
                database.settle()
                drained = run.measure(*[order] * connections)
                samples.append(sum(one.ended for one in drained) / max(one.busy_s for one in drained))
            yield Figure(
                line="claim",
                name=f"end + claim, k={k}, {connections} connection{'s' * (connections > 1)}",
                unit="jobs/s",
                samples=samples,
                bound=MUST.get((k, connections)),
            )


def _samples(sizes: Sizes) -> int:
    return len(KS) * len(CONNECTIONS) * sizes.samples


LINES = [Line("claim", "end + claim by the size of a turn, on 1, 2 and 8 connections", _samples, _cells)]
