"""Many workers, lanes and slots beside few of them, alternately."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlive_lab.bench import jobs
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock
from outlive_lab.bench.worker import SMALL, working


@dataclass(frozen=True, slots=True)
class Setting:
    """How many workers, with how many slots each, drain jobs of this task from how many queues, of a lane each."""

    workers: int = 1
    slots: int = 2
    queues: int = 1
    task: str = jobs.warm.name

    def rate(self, run: Run) -> float:
        with working(run, SMALL, slots=self.slots, workers=self.workers) as some:
            return some.drain(Stock(count=run.sizes.warm, task=self.task, queues=self.queues))


PAIRS = {
    "warm drain, 16 workers, beside 2": (Setting(workers=2), Setting(workers=16), 0.85),
    "warm drain, 10,000 lanes, beside one": (Setting(), Setting(queues=10_000), 0.6),
    "jobs of 1 ms, 256 slots, beside 64": (
        Setting(slots=64, task=jobs.nap.name), Setting(slots=256, task=jobs.nap.name), 1.0
    ),
}  # fmt: skip


def many(run: Run) -> Iterator[Figure]:
    for name, (few, more, least) in PAIRS.items():
        pairs = [(few.rate(run), more.rate(run)) for _ in range(run.sizes.samples)]
        reference, samples = zip(*pairs, strict=True)
        yield Figure("many", name, "jobs/s", samples, reference, Bound("of reference", least))
