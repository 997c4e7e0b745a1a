"""Claims: by size and connections, beside a backlog, while vacuum is held back, and beside pruning.

A backlog is a thousand or a million jobs that are pending, or that are older and can't be claimed. Each is measured
alternately with the same drain in a database that holds nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from outlive import db, store
from outlive.states import State
from outlive_lab.bench.draining import Drained, drain
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.processes import Probe, Probing
from outlive_lab.bench.run import Run, Sizes
from outlive_lab.bench.stock import Stock

K = 200
"""The size of a claim in all benchmarks but the first."""

CONNECTIONS = (1, 2, 8)
# More than any known machine drains in a second with claims of this size, so that the stock lasts.
ENOUGH_PER_S = {1: 15_000, 8: 45_000, 64: 90_000, 200: 110_000, 512: 120_000}
MUST = {(200, 1): Bound("at least", 30_000), (512, 1): Bound("at least", 30_000)}
BESIDE = Bound("of reference", 0.75)
BESIDE_SLEEPING = Bound("of reference", 0.90)

OPEN, PAUSED = "b-open", "a-paused"
DAY_S = 86_400.0
HOLDS = 3
POINTS = 20
"""How many points of the curve belong to each of the holds."""
OLD_S = 3600.0
PRUNE_ENOUGH_PER_S = 60_000


def free_drain(run: Run, *, k: int = K, source: str = "") -> Probe[Drained]:
    """The drain that others are compared with: one connection, in a database that holds only the drained jobs."""
    free = run.free
    free.hold(f"drained {source}", [])
    refill = Stock(count=run.sizes.stock, source=source)
    return partial(drain, free.url, k=k, seconds=run.sizes.seconds, refill=refill)


def by_size(run: Run) -> Iterator[Figure]:
    database, sizes = run.free, run.sizes
    database.hold("drained ", [])
    for k, enough_per_s in ENOUGH_PER_S.items():
        stock = Stock(count=int(enough_per_s * sizes.seconds) + 8 * 4 * k)
        probe = partial(drain, database.url, k=k, seconds=sizes.seconds)
        for connections in CONNECTIONS:
            samples = []
            for _ in range(sizes.samples):
                stock.fill_up(database.connection)
                database.vacuum()
                drained = run.processes.measure([probe] * connections)
                samples.append(sum(one.ended for one in drained) / max(one.busy_s for one in drained))
            name = f"end + claim, k={k}, {connections} connection{'s' * (connections > 1)}"
            yield Figure("claim", name, "jobs/s", samples, bound=MUST.get((k, connections)))


@dataclass(frozen=True, slots=True)
class Backlog:
    """The content of the loaded database. The drain takes `refill`, or the backlog itself."""

    title: str
    stocks: Sequence[Stock]
    refill: Stock | None = None
    source: str = ""
    """The source of the jobs that it is compared with."""
    bound: Bound | None = BESIDE


def backlogs(sizes: Sizes) -> dict[str, Backlog]:
    count, half = sizes.backlog, sizes.backlog // 2
    few, ready, opened = Stock(count=sizes.few), Stock(count=sizes.stock), Stock(count=sizes.stock, source=OPEN)
    future = [Stock(count=half, ahead_s=DAY_S, priority=0), Stock(count=count - half, ahead_s=DAY_S)]
    paused = [Stock(count=count, source=PAUSED, paused=True)]
    sleeping = [Stock(count=count, ahead_s=DAY_S, sleeping=True)]
    foreign = [Stock(count=count, task="another.app.task")]
    per_lane = max(1, int(sizes.samples * sizes.seconds * 60_000 / sizes.lanes))
    lanes = [Stock(count=sizes.lanes * per_lane, source="source-", lanes=sizes.lanes)]
    pending = Stock(count=count)
    lasts = count >= 10 * sizes.stock
    return {
        "few": Backlog(f"{sizes.few:,} pending", [], few, bound=None),
        "future": Backlog(f"{count:,} future jobs in front", future, ready),
        "paused": Backlog(f"{count:,} of a paused source in front", paused, opened, source=OPEN),
        "foreign": Backlog(f"{count:,} of foreign tasks in front", foreign, ready),
        "sleeping": Backlog(f"{count:,} that sleep", sleeping, ready, bound=BESIDE_SLEEPING),
        "lanes": Backlog(f"{sizes.lanes:,} lanes", lanes, source=OPEN, bound=None),
        "pending": Backlog(f"{count:,} pending", [pending], None if lasts else pending),
    }


def beside_backlog(run: Run, name: str) -> Iterator[Figure]:
    backlog = backlogs(run.sizes)[name]
    loaded = run.loaded
    loaded.hold(name, backlog.stocks)
    beside = partial(drain, loaded.url, k=K, seconds=run.sizes.seconds, refill=backlog.refill)
    free, drained = run.in_turn(free_drain(run, source=backlog.source), beside)
    samples, reference = [one.per_s for one in drained], [one.per_s for one in free]
    yield Figure(name, f"claims, {backlog.title}", "jobs/s", samples, reference, backlog.bound)


def vacuum_held_back(run: Run) -> Iterator[Figure]:
    """Drain while another session holds a snapshot open, so that vacuum can remove nothing."""
    loaded, hold_s = run.loaded, run.sizes.hold_s / HOLDS
    loaded.hold("held back", [])
    loaded.content = ""  # The drain leaves dead rows, which no other benchmark may meet.
    probe = partial(drain, loaded.url, k=K, refill=Stock(count=run.sizes.stock), part_s=hold_s / POINTS)
    run.one(partial(probe, seconds=run.sizes.seconds))
    with db.connect(loaded.url) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from outlive.schema_version")
        pairs = [(run.one(free_drain(run)), run.one(partial(probe, seconds=hold_s))) for _ in range(HOLDS)]
    free, held = [one.per_s for one, _ in pairs], [one.per_s for _, one in pairs]
    rates = [rate for _, one in pairs for rate in one.rates]
    series = [(run.sizes.hold_s * (n + 1) / len(rates), rate) for n, rate in enumerate(rates)]
    name = f"claims, vacuum held back for {run.sizes.hold_s:.0f} s"
    yield Figure("vacuum", name, "jobs/s", held, free, Bound("of reference", 0.60), series)


def prune(url: str, seconds: float) -> Probing[Drained]:
    with db.connect(url) as connection:
        yield
        gone, more, began_s = 0, True, monotonic()
        while more and monotonic() - began_s < seconds:
            pruned, more, _ = db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=OLD_S))
            gone += pruned
        return Drained(gone, monotonic() - began_s)


def beside_pruning(run: Run) -> Iterator[Figure]:
    loaded, seconds = run.loaded, run.sizes.seconds
    loaded.hold("finished", [])
    loaded.content = ""
    pruning, draining = partial(prune, loaded.url, seconds), partial(drain, loaded.url, k=K, seconds=seconds)
    ready = Stock(count=int(PRUNE_ENOUGH_PER_S * seconds))
    finished = Stock(count=ready.count, ahead_s=-2 * OLD_S, finished=True)
    alone, together = [], []
    for _ in range(run.sizes.samples):
        loaded.add([finished])
        alone.append(run.one(pruning).per_s)
        loaded.add([finished, ready])
        together.append(run.processes.measure([pruning, draining]))
    pruned, drained = ([pair[n].per_s for pair in together] for n in (0, 1))
    yield Figure("prune", "prune, alone", "jobs/s", alone)
    yield Figure("prune", "prune, while a drain runs", "jobs/s", pruned, drained, Bound("of reference", 1.0))
    yield Figure("prune", "that drain", "jobs/s", drained)
