"""Killers: what healthy jobs notice of one in a hundred that takes its process down, again and again."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.lab.bench import jobs
from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Line, Run
from outlive.lab.bench.sizes import Sizes
from outlive.lab.bench.worker import SMALL, Worker, clear, working

SLOTS = 8
ONE_IN = 100

_CAUGHT = """
select count(*) from outlive.held h where why = 'quarantined' and crashes = %(limit)s
  and (select count(*) = %(limit)s and bool_and(outcome = 'crashed' and signal = 'SIGSEGV')
       from outlive.attempts where job_id = h.id)
"""


def _beside(run: Run) -> Iterator[Figure]:
    alone, beside, caught = [], [], []
    count = run.sizes.killing
    killers = max(1, count // ONE_IN)
    with working(run, SMALL, slots=SLOTS) as worker:
        for _ in range(_pairs(run.sizes)):
            alone.append(_pages(worker, count, poisoned=0))
            run.moved_on()
            beside.append(_pages(worker, count, poisoned=killers))
            row = run.databases.loaded.connection.execute(_CAUGHT, {"limit": jobs.MAX_CRASHES}).fetchone()
            caught.append(100 * row[0] / killers if row else 0.0)
            run.moved_on()
    yield Figure(line="killers", name=f"{count:,} jobs of 5 ms, {SLOTS} slots", unit="jobs/s", samples=alone)
    yield Figure(
        line="killers",
        name=f"healthy ones beside {killers:,} that kill",
        unit="jobs/s",
        samples=beside,
        reference=alone,
        bound=Bound("of reference", 0.9),
    )
    yield Figure(
        line="killers",
        name=f"killers caught after exactly {jobs.MAX_CRASHES} kills",
        unit="%",
        samples=caught,
        bound=Bound("at least", 100),
    )


def _pairs(sizes: Sizes) -> int:
    """Two are enough of what takes so long."""
    return min(2, sizes.samples)


def _pages(worker: Worker, count: int, *, poisoned: int) -> float:
    """The killers lie evenly among the others; healthy ones a second, until the last of them has ended."""
    clear(worker.run)
    step = count // poisoned if poisoned else 0
    jobs.app.enqueue_many(
        [jobs.page.job(poisoned > 0 and n % step == 0 and n // step < poisoned) for n in range(count)]
    )
    return worker.rate(count)


LINES = [Line("killers", "healthy jobs beside those that kill", lambda sizes: 2 * _pairs(sizes), _beside)]
