"""Jobs that share a process: thousands that wait, beside those of three other systems, and jobs that hardly wait."""

from __future__ import annotations

from collections.abc import Iterator

from outlive_lab.bench import jobs
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock
from outlive_lab.bench.worker import SMALL, working
from outlive_lab.peers import environments
from outlive_lab.peers.plan import OURS, Mode, System, systems
from outlive_lab.peers.session import Place, wait

SLOTS = 2
ALL_AT_ONCE = {
    OURS: Mode(
        command=f"outlive worker with_outlive:app --slots {SLOTS}",
        settings=f"{SLOTS} slots, `share=2500`, log lines on",
        jobs=0,
    ),
    "pgqueuer": Mode(
        command="pgq run with_pgqueuer:main --batch-size 500",
        settings="two processes, batches of 500, no limit of tasks, a pool of 5 connections each",
        jobs=0,
        workers=2,
        environment={"PEER_POOL": "5", "PEER_AUTOVACUUM": "1"},
    ),
    "procrastinate": Mode(
        command="procrastinate --app with_procrastinate.app --log-level warning worker --concurrency 2500",
        settings="two processes, `--concurrency 2500`, no log lines",
        jobs=0,
        workers=2,
    ),
    "awa": Mode(
        command="python -m with_awa 5000",
        settings="one process, 5,000 workers in it, queue storage; ended means that the last job has",
        jobs=0,
        environment={"PEER_COPY": "1"},
    ),
}
"""How each system is told to run thousands of waiting jobs at once."""
NAMES = {"took": "until the last has ended", "p50": "pick-up, p50", "p99": "pick-up, p99", "memory": "memory, PSS"}
UNITS = {"took": "s", "p50": "ms", "p99": "ms", "memory": "MB"}
MUST = {"took": Bound("at most", 3.5), "memory": Bound("at most", 250)}
FIRST = ("took", "p99")
"""In these outlive must be the first."""


def share(run: Run) -> Iterator[Figure]:
    yield from _waiting(run)
    plain, empty, short = list[float](), list[float](), list[float]()
    with working(run, SMALL, slots=SLOTS) as worker:
        for _ in range(run.sizes.samples):
            plain.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.warm.name)))
            empty.append(worker.drain(Stock(count=run.sizes.warm, task=jobs.shared.name)))
            short.append(worker.drain(Stock(count=run.sizes.warm // 2, task=jobs.waits.name)))
    name = f"empty async jobs, share=500, {SLOTS} slots, beside warm plain ones"
    yield Figure("share", name, "jobs/s", empty, plain, Bound("of reference", 1.0))
    yield Figure("share", f"jobs of 50 ms, share=500, {SLOTS} slots", "jobs/s", short, bound=Bound("at least", 6_000))


def _waiting(run: Run) -> Iterator[Figure]:
    """All systems in turn. One that can't be installed has no figure."""
    place = Place(run.free.connection, run.free.url, None)
    found: dict[str, dict[str, list[float]]] = {}
    chosen = [system for system in systems() if system.name in ALL_AT_ONCE and _is_there(system)]
    for _ in range(run.sizes.samples):
        for system in chosen:
            for what, value in wait(system, ALL_AT_ONCE[system.name], place, run.sizes.waiting).items():
                found.setdefault(system.title, {}).setdefault(what, []).append(value)
    ours = found.pop(OURS)
    jobs_of = f"{run.sizes.waiting:,} jobs of 2 s"
    for what, name in NAMES.items():
        yield Figure("share", f"{jobs_of}: {name}", UNITS[what], ours[what], bound=MUST.get(what))
    for title, theirs in found.items():
        for what, name in NAMES.items():
            yield Figure("share", f"{title}: {name}", UNITS[what], theirs[what])
        for what in FIRST:
            beside = f"{jobs_of}: {NAMES[what]}, beside {title}"
            yield Figure("share", beside, UNITS[what], ours[what], theirs[what], Bound("at most of reference", 1.0))


def _is_there(system: System) -> bool:
    try:
        environments.programs(system)
    except environments.Missing:
        return False
    return True
