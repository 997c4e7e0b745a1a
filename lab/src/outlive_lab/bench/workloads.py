"""What a worker can do: its rates, how soon it picks up a job, its memory, and its health beside jobs that kill."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from outlive.config import Config
from outlive_lab.bench import jobs
from outlive_lab.bench.claims import free_drain
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.forking import forks
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock
from outlive_lab.bench.worker import HEAVY, SMALL, Worker, command_s, starting, working

CHILDREN = 2
SLOTS = 8
MANY_SLOTS = (16, 32, 64, 128, 256)
CEILING_KS = (200, 512)
COMMANDS = 5
PAUSES_S = (0.02, 0.8)
"""Between two jobs, evenly distributed: some meet a worker that was just busy, others one that sleeps."""

ONE_KILLER_IN = 100
_CAUGHT = """
select count(*) from outlive.held h where why = 'quarantined' and crashes = %(limit)s
  and (select count(*) = %(limit)s and bool_and(outcome = 'crashed' and signal = 'SIGSEGV')
       from outlive.attempts where job_id = h.id)
"""


def warm(run: Run) -> Iterator[Figure]:
    """Alternately: the store's ceiling, on one connection and without jobs, and workers with two children."""
    ceiling: list[float] = []
    samples, recycled, clean, quiet = list[float](), list[float](), list[float](), list[float]()
    for _ in range(run.sizes.samples):
        ceiling.append(max(run.one(free_drain(run, k=k)).per_s for k in CEILING_KS))
        with working(run, SMALL, slots=CHILDREN) as worker:
            samples.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.warm.name)))
            recycled.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.recycled.name)))
            clean.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.clean.name)))
        with working(run, SMALL, slots=CHILDREN, options="--quiet") as worker:
            quiet.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.warm.name)))
    name = f"drain, warm, {CHILDREN} children, {run.sizes.warm:,} jobs"
    beside = "the same beside end + claim, k=200 or 512"
    yield Figure("warm", name, "jobs/s", samples, bound=Bound("at least", 16_000))
    yield Figure("warm", beside, "jobs/s", samples, ceiling, Bound("of reference", 0.5))
    yield Figure("warm", "the same beside --quiet", "jobs/s", samples, quiet, Bound("of reference", 0.9))
    yield Figure("warm", "the same with --quiet", "jobs/s", quiet)
    yield Figure("warm", "the same with recycle_after=100", "jobs/s", recycled, bound=Bound("at least", 14_000))
    yield Figure("warm", 'the same with recycle_after="clean"', "jobs/s", clean, bound=Bound("at least", 10_000))


def sources(run: Run) -> Iterator[Figure]:
    """Alternately: jobs without a source, of one that has no limits, of a thousand such, and of one with a rate."""
    stock = Stock(count=run.sizes.warm, task=jobs.warm.name)
    some = {
        "none": stock,
        "one source": replace(stock, source="source-"),
        f"{run.sizes.lanes:,} sources": replace(stock, source="source-", lanes=run.sizes.lanes),
        "one source with a rate": replace(stock, source="source-", count=stock.count // 20, rate_per_minute=6e6),
    }
    rates: dict[str, list[float]] = {name: [] for name in some}
    with working(run, SMALL, slots=CHILDREN) as worker:
        for _ in range(run.sizes.samples):
            for name, one in some.items():
                rates[name].append(worker.drain(one))
    without, *others = rates
    for name, least in zip_longest(others, (8_000, 5_000)):
        bound = Bound("at least", least) if least else None
        yield Figure("sources", f"warm drain, {name}, beside none", "jobs/s", rates[name], rates[without], bound)


def keys(run: Run) -> Iterator[Figure]:
    """Alternately: jobs without a concurrency key, and jobs with a key each. They wait before the worker starts."""
    plain, keyed, count = list[float](), list[float](), run.sizes.warm
    for _ in range(run.sizes.samples):
        for rates, key in ((plain, None), (keyed, "key-{}")):
            Worker(run.loaded, []).clear()
            jobs.app.configure(Config(database_url=run.loaded.url))
            jobs.app.enqueue_many(
                jobs.warm.using(concurrency_key=key and key.format(n)).job("https://example.org/page", n)
                for n in range(count)
            )
            run.loaded.vacuum()
            with starting(run, SMALL, slots=CHILDREN) as worker:
                rates.append(worker.rate(count))
    name = f"warm drain, {count:,} keys, beside none"
    yield Figure("keys", name, "jobs/s", keyed, plain, Bound("of reference", 0.75))


def slots(run: Run) -> Iterator[Figure]:
    """The rate must not fall with more slots; a twentieth is noise."""
    best: list[float] = []
    for number in MANY_SLOTS:
        with working(run, SMALL, slots=number) as worker:
            samples = [
                worker.drain(Stock(count=run.sizes.warm // 2, task=jobs.nap.name)) for _ in range(run.sizes.samples)
            ]
        bound = Bound("of reference", 0.95) if best else None
        yield Figure(
            "slots", f"jobs of 1 ms, {number} slots, beside the best with fewer", "jobs/s", samples, best, bound
        )
        best = max(best, samples, key=lambda some: statistics.median(some or [0.0]))


def fresh(run: Run) -> Iterator[Figure]:
    for app, target, slots in (
        ("small app", SMALL, CHILDREN),
        ("small app", SMALL, SLOTS),
        ("large libraries", HEAVY, SLOTS),
    ):
        forked, samples = [], []
        with working(run, target, slots=slots) as worker:
            for _ in range(run.sizes.samples):
                forked.append(run.one(partial(forks, target, run.sizes.seconds)))
                samples.append(worker.drain(Stock(count=run.sizes.fresh, task=jobs.fresh.name)))
        rates = [per_s for per_s, _ in forked]
        loaded = ", ".join(name.partition(".")[0] for name in forked[0][1])
        about = f"{app} ({loaded or 'none is installed'})" if target == HEAVY else app
        if slots == SLOTS:
            yield Figure("fresh", f"bare fork, one core, {about}", "forks/s", rates)
        bound = Bound("of reference", 0.7) if slots == SLOTS else None
        yield Figure("fresh", f"drain, fresh, {slots} slots, {about}", "jobs/s", samples, rates, bound)


def pick_up(run: Run) -> Iterator[Figure]:
    pauses = random.Random(1)  # The same pauses in each run.
    waited_ms = []
    with working(run, SMALL, slots=CHILDREN):
        for _ in range(run.sizes.pickups):
            time.sleep(pauses.uniform(*PAUSES_S))
            job = jobs.began.enqueue()
            returned = time.time()
            waited_ms.append(1000 * (job.result(timeout=30) - returned))
    name = "from enqueue's return to the job's first line"
    last = statistics.quantiles(waited_ms, n=100, method="inclusive")[-1] if len(waited_ms) > 1 else waited_ms[0]
    yield Figure("pick-up", f"{name}, p50", "ms", waited_ms, bound=Bound("at most", 2.5))
    yield Figure("pick-up", f"{name}, p99", "ms", [last], bound=Bound("at most", 5))


def commands(run: Run) -> Iterator[Figure]:
    """The wall time of two commands, in a database that has only finished jobs."""
    loaded = run.loaded
    loaded.hold("commands", [Stock(count=run.sizes.finished, finished=True)])
    words = {"jobs": ["jobs", "--state", "failed"], "stats": ["stats"]}
    for name, bound_s in (("jobs", 0.25), ("stats", 0.3)):
        taken_s = [command_s(loaded.url, *words[name]) for _ in range(COMMANDS)]
        about = f"outlive {' '.join(words[name])}, {run.sizes.finished:,} finished jobs, wall"
        yield Figure("cli", about, "s", taken_s, bound=Bound("at most", bound_s))


def memory(run: Run) -> Iterator[Figure]:
    """The first measurement follows some jobs, because a worker makes many objects once."""
    count = run.sizes.warm
    seen = []
    with working(run, SMALL, slots=CHILDREN) as worker:
        for some in (max(1, count // 50), count):
            worker.drain(Stock(count=some, task=jobs.warm.name))
            seen.append((worker.memory_mb(), worker.child_mb()))
    (before, child_before), (after, child_after) = seen
    most, most_of_child, flat = Bound("at most", 80), Bound("at most", 5), Bound("at most of reference", 1.10)
    child = "idle child beyond the zygote"
    yield Figure("memory", "supervisor, before", "MB", [before], bound=most)
    yield Figure("memory", f"supervisor, after {count:,} jobs", "MB", [after], bound=most)
    yield Figure("memory", "the same beside before", "MB", [after], [before], flat)
    yield Figure("memory", f"{child}, before", "MB", [child_before], bound=most_of_child)
    yield Figure("memory", f"{child}, after {count:,} jobs", "MB", [child_after], bound=most_of_child)


def killers(run: Run) -> Iterator[Figure]:
    alone, beside, caught = [], [], []
    count = run.sizes.killing
    killing = max(1, count // ONE_KILLER_IN)
    with working(run, SMALL, slots=SLOTS) as worker:
        for _ in range(min(2, run.sizes.samples)):  # Each takes long.
            alone.append(_pages(worker, count, killing=0))
            beside.append(_pages(worker, count, killing=killing))
            [(number,)] = worker.database.connection.execute(_CAUGHT, {"limit": jobs.MAX_CRASHES}).fetchall()
            caught.append(100 * number / killing)
    exactly = f"killers caught after exactly {jobs.MAX_CRASHES} kills"
    healthy = f"healthy ones beside {killing:,} that kill"
    yield Figure("killers", f"{count:,} jobs of 5 ms, {SLOTS} slots", "jobs/s", alone)
    yield Figure("killers", healthy, "jobs/s", beside, alone, Bound("of reference", 0.9))
    yield Figure("killers", exactly, "%", caught, bound=Bound("at least", 100))


def _pages(worker: Worker, count: int, *, killing: int) -> float:
    """The rate of the healthy jobs. Those that kill are spread evenly among them."""
    worker.clear()
    step = count // killing if killing else count + 1
    poisoned = set(range(0, killing * step, step))
    jobs.app.enqueue_many([jobs.page.job(n in poisoned) for n in range(count)])
    return worker.rate(count)
