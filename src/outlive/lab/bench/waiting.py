"""Pick-up: how long a job waits for a worker that has nothing to do."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

from outlive.lab.bench import jobs
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.worker import SMALL, working

SLOTS = 2
PAUSES_S = (0.02, 0.8)
"""Between two jobs, evenly distributed: a worker that was busy a moment ago, and one that sleeps."""


def _picked_up(run: Run) -> Iterator[Figure]:
    pauses = random.Random(1)  # The same pauses each time.
    waited_ms = []
    with working(run, SMALL, slots=SLOTS):
        for _ in range(run.sizes.pickups):
            time.sleep(pauses.uniform(*PAUSES_S))
            asked = time.time()
            waited_ms.append(1000 * (jobs.began.enqueue().result(timeout=30) - asked))
            run.moved_on()
    name = "from before enqueue to the job's first line"
    last = statistics.quantiles(waited_ms, n=100, method="inclusive")[-1] if len(waited_ms) > 1 else waited_ms[0]
    yield Figure(line="pick-up", name=f"{name}, p50", unit="ms", samples=waited_ms, bound=Bound("at most", 5))
    yield Figure(line="pick-up", name=f"{name}, p99", unit="ms", samples=[last], bound=Bound("at most", 20))


LINES = [Line("pick-up", "how long a job waits for an idle worker", lambda sizes: sizes.pickups, _picked_up)]
