"""Claims of one, two and eight connections, claims while vacuum is held back, and pruning beside claims."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import monotonic

from outlive import db, store
from outlive.lab.bench.draining import Drained, drain
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.processes import Probe, Probing
from outlive.lab.bench.run import Benchmark, Run
from outlive.lab.bench.stock import Stock
from outlive.states import State

K = 200
"""The size of a claim in all benchmarks but the first."""

KS = (1, 8, 64, 200, 512)
CONNECTIONS = (1, 2, 8)
MUST = {(200, 1): Bound("at least", 30_000), (512, 1): Bound("at least", 30_000)}
# More than any known machine drains in a second with claims of this size, so that the stock lasts.
ENOUGH_PER_S = {1: 15_000, 8: 45_000, 64: 90_000, 200: 110_000, 512: 120_000}

HOLDS = 3
POINTS = 20
"""How many points of the curve belong to each of the holds."""

OLD_S = 3600.0
PRUNE_ENOUGH_PER_S = 60_000


def free_drain(run: Run, *, k: int = K, source: str = "") -> Probe[Drained]:
    """The drain that others are compared with: one connection, in a database that holds only the drained jobs."""
    free = run.databases.free
    free.hold(f"drained {source}", [])
    refill = Stock(count=run.sizes.stock, source=source)
    return partial(drain, free.url, k=k, seconds=run.sizes.seconds, refill=refill)


def _claim(run: Run) -> Iterator[Figure]:
    database, sizes = run.databases.free, run.sizes
    database.hold("drained ", [])
    for k in KS:
        stock = Stock(count=int(ENOUGH_PER_S[k] * sizes.seconds) + 8 * 4 * k)
        for connections in CONNECTIONS:
            probe = partial(drain, database.url, k=k, seconds=sizes.seconds)
            samples = []
            for _ in range(sizes.samples):
                stock.fill_up(database.connection)
                database.vacuum()
                drained = run.measure(*[probe] * connections)
                samples.append(sum(one.ended for one in drained) / max(one.busy_s for one in drained))
            name = f"end + claim, k={k}, {connections} connection{'s' * (connections > 1)}"
            yield Figure("claim", name, "jobs/s", samples, bound=MUST.get((k, connections)))


def _vacuum(run: Run) -> Iterator[Figure]:
    """Drain while another session holds a snapshot open, so that vacuum can remove nothing."""
    loaded, hold_s = run.databases.loaded, run.sizes.hold_s / HOLDS
    loaded.hold("held back", [])
    loaded.content = ""  # The drain leaves dead rows, which no other benchmark may meet.
    probe = partial(drain, loaded.url, k=K, refill=Stock(count=run.sizes.stock), part_s=hold_s / POINTS)
    run.one(partial(probe, seconds=run.sizes.seconds))
    with db.connect(loaded.url) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from outlive.schema_version")
        pairs = [(run.one(free_drain(run)), run.one(partial(probe, seconds=hold_s))) for _ in range(HOLDS)]
    rates = [rate for _, held in pairs for rate in held.rates]
    yield Figure(
        "vacuum",
        f"claims, vacuum held back for {run.sizes.hold_s:.0f} s",
        "jobs/s",
        [held.per_s for _, held in pairs],
        [free.per_s for free, _ in pairs],
        Bound("of reference", 0.60),
        [(run.sizes.hold_s * (n + 1) / len(rates), rate) for n, rate in enumerate(rates)],
    )


def prune(url: str, seconds: float) -> Probing[Drained]:
    with db.connect(url) as connection:
        yield
        gone, more, began_s = 0, True, monotonic()
        while more and monotonic() - began_s < seconds:
            pruned, more = db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=OLD_S))
            gone += pruned
        return Drained(gone, monotonic() - began_s)


def _prune(run: Run) -> Iterator[Figure]:
    loaded, seconds = run.databases.loaded, run.sizes.seconds
    loaded.hold("finished", [])
    loaded.content = ""
    pruning, draining = partial(prune, loaded.url, seconds), partial(drain, loaded.url, k=K, seconds=seconds)
    ready = Stock(count=int(PRUNE_ENOUGH_PER_S * seconds))
    finished = Stock(count=ready.count, ahead_s=-2 * OLD_S, finished=True)
    alone: list[float] = []
    together: list[list[Drained]] = []
    for _ in range(run.sizes.samples):
        loaded.add([finished])
        alone.append(run.one(pruning).per_s)
        loaded.add([finished, ready])
        together.append(run.measure(pruning, draining))
    pruned, drained = ([pair[n].per_s for pair in together] for n in (0, 1))
    yield Figure("prune", "prune, alone", "jobs/s", alone)
    yield Figure("prune", "prune, while a drain runs", "jobs/s", pruned, drained, Bound("of reference", 1.0))
    yield Figure("prune", "that drain", "jobs/s", drained)


CLAIM = Benchmark(
    "claim",
    "end + claim by the size of a claim, on 1, 2 and 8 connections",
    lambda sizes: len(KS) * len(CONNECTIONS) * sizes.samples,
    _claim,
)
VACUUM = Benchmark("vacuum", "claims while vacuum is held back", lambda _: 2 * HOLDS + 1, _vacuum)
PRUNE = Benchmark("prune", "pruning as fast as a drain finishes jobs", lambda sizes: 2 * sizes.samples, _prune)
