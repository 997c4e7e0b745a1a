"""Prune: whether finished jobs are forgotten as fast as a drain finishes them, alone and while it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from outlive import db, store
from outlive.lab.bench.backlogs import K
from outlive.lab.bench.draining import Drained, DrainOrder
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.stock import Stock
from outlive.states import State

OLD_S = 3600.0
ENOUGH_PER_S = 60_000


@dataclass(frozen=True, slots=True)
class PruneOrder:
    """Prune for so long, in the batches of the store; gives jobs and seconds."""

    url: str
    seconds: float

    def prepare(self) -> Callable[[], Drained]:
        connection = db.connect(self.url)

        def timed() -> Drained:
            gone, more, began_s = 0, True, monotonic()
            with connection:
                while more and monotonic() - began_s < self.seconds:
                    pruned, more = db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=OLD_S))
                    gone += pruned
                return Drained(gone, monotonic() - began_s)

        return timed


def _pruned(run: Run) -> Iterator[Figure]:
    loaded, seconds = run.databases.loaded, run.sizes.seconds
    loaded.hold("finished", [])
    loaded.content = ""
    prune = PruneOrder(loaded.url, seconds)
    finished = Stock(count=int(ENOUGH_PER_S * seconds), ahead_s=-2 * OLD_S, finished=True)
    drain = DrainOrder(url=loaded.url, k=K, seconds=seconds)
    alone: list[Drained] = []
    together: list[list[Drained]] = []
    for _ in range(run.sizes.samples):
        _replenish(run, [finished])
        alone.append(run.one(prune))
        _replenish(run, [finished, Stock(count=int(ENOUGH_PER_S * seconds))])
        together.append(run.measure(prune, drain))
    drained = [drain.ended / drain.busy_s for _, drain in together]
    yield Figure(line="prune", name="prune, alone", unit="jobs/s", samples=[one.ended / one.busy_s for one in alone])
    yield Figure(
        line="prune",
        name="prune, while a drain runs",
        unit="jobs/s",
        samples=[prune.ended / prune.busy_s for prune, _ in together],
        reference=drained,
        bound=Bound("of reference", 1.0),
    )
    yield Figure(line="prune", name="that drain", unit="jobs/s", samples=drained)


def _replenish(run: Run, stocks: list[Stock]) -> None:
    loaded = run.databases.loaded
    for stock in stocks:
        stock.put(loaded.connection)
    loaded.settle()


LINES = [Line("prune", "prune keeping pace with a drain", lambda sizes: 2 * sizes.samples, _pruned)]
