"""Drain: how many jobs a worker runs a second, warm beside what the store can do, fresh beside what fork can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outlive.lab.bench import jobs
from outlive.lab.bench.backlogs import free_order
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.forking import ForkOrder
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.stock import Stock
from outlive.lab.bench.worker import HEAVY, SMALL, working

CHILDREN = 2
SLOTS = 8
CEILING_KS = (200, 512)


def _warm(run: Run) -> Iterator[Figure]:
    """In turn: the store's ceiling, one connection and no job; and a worker with two children."""
    samples, ceiling = [], []
    with working(run, SMALL, slots=CHILDREN) as worker:
        for _ in range(run.sizes.samples):
            orders = [replace(free_order(run), k=k) for k in CEILING_KS]
            ceiling.append(max(one.ended / one.busy_s for one in map(run.one, orders)))
            samples.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.warm.name)))
            run.moved_on()
    name = f"drain, warm, {CHILDREN} children, {run.sizes.warm:,} jobs"
    yield Figure(line="warm", name=name, unit="jobs/s", samples=samples, bound=Bound("at least", 16_000))
    yield Figure(
        line="warm",
        name="the same beside end + claim, k=200 or 512",
        unit="jobs/s",
        samples=samples,
        reference=ceiling,
        bound=Bound("of reference", 0.5),
    )


def _fresh(run: Run) -> Iterator[Figure]:
    for about, target in (("small app", SMALL), ("large libraries", HEAVY)):
        forked, samples = [], []
        with working(run, target, slots=SLOTS) as worker:
            for _ in range(run.sizes.samples):
                forked.append(run.one(ForkOrder(target, run.sizes.seconds)))
                samples.append(worker.drain(Stock(count=run.sizes.fresh, task=jobs.fresh.name)))
                run.moved_on()
        rates = [one.per_s for one in forked]
        loaded = ", ".join(name.partition(".")[0] for name in forked[0].libraries)
        about = f"{about} ({loaded or 'none is installed'})" if target == HEAVY else about
        yield Figure(line="fresh", name=f"bare fork, one core, {about}", unit="forks/s", samples=rates)
        yield Figure(
            line="fresh",
            name=f"drain, fresh, {SLOTS} slots, {about}",
            unit="jobs/s",
            samples=samples,
            reference=rates,
            bound=Bound("of reference", 0.7),
        )


LINES = [
    Line("warm", "a worker's warm drain", lambda sizes: (1 + len(CEILING_KS)) * sizes.samples, _warm),
    Line("fresh", "a worker's drain with a process per job", lambda sizes: 4 * sizes.samples, _fresh),
]
