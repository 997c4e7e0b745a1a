"""Memory: what the supervisor and an idle child have, before and after many jobs."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.lab.bench import jobs
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.stock import Stock
from outlive.lab.bench.worker import SMALL, working

SLOTS = 2
FLAT = Bound("at most of reference", 1.10)


def _weighed(run: Run) -> Iterator[Figure]:
    """Before means after the first few: what is made once is made then."""
    count = run.sizes.warm
    with working(run, SMALL, slots=SLOTS) as worker:
        worker.drain(Stock(count=max(1, count // 50), task=jobs.warm.name))
        before_mb, child_before_mb = worker.memory_mb(), worker.child_mb()
        run.moved_on()
        worker.drain(Stock(count=count, task=jobs.warm.name))
        after_mb, child_after_mb = worker.memory_mb(), worker.child_mb()
        run.moved_on()
    most, most_of_child = Bound("at most", 80), Bound("at most", 5)

    def figure(name: str, value: float, bound: Bound, reference: list[float] | None = None) -> Figure:
        return Figure(line="memory", name=name, unit="MB", samples=[value], bound=bound, reference=reference or [])

    yield figure("supervisor, before", before_mb, most)
    yield figure(f"supervisor, after {count:,} jobs", after_mb, most)
    yield figure("the same beside before", after_mb, FLAT, [before_mb])
    yield figure("idle child beyond the zygote, before", child_before_mb, most_of_child)
    yield figure(f"idle child beyond the zygote, after {count:,} jobs", child_after_mb, most_of_child)


LINES = [Line("memory", "memory before and after many jobs", lambda _: 2, _weighed)]
