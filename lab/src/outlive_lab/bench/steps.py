"""Steps that do nothing: of one job in a row, beside those of two other systems, and of many jobs at once. And how soon
a job that waits goes on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from outlive.errors import OutliveError
from outlive.states import State
from outlive_lab.bench import jobs
from outlive_lab.bench.databases import database
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.run import Run
from outlive_lab.bench.worker import SMALL, Worker, working
from outlive_lab.peers import environments
from outlive_lab.peers.plan import System
from outlive_lab.peers.session import DRIVERS, as_url

MANY = 64
PEERS = (
    System("dbos", "DBOS 3.3.0", "Postgres", ["dbos==3.3.0"], {}),
    System("absurd", "Absurd 0.5.1", "Postgres", ["absurd-sdk==0.5.1", "absurdctl==0.5.1"], {}),
)
PEER_S = 120.0
WAITS_S = 0.02
# Steps that are written together have the same transaction.
_TRANSACTIONS = "select count(distinct xmin::text)::float8 / count(*) from outlive.steps"


def steps(run: Run) -> Iterator[Figure]:
    """One job, then each peer, in turn; then many jobs. A peer that can't be measured here has no figure."""
    rates, times_ms, transactions = list[float](), list[float](), list[float]()
    peers: dict[str, list[float]] = {}
    for _ in range(run.sizes.samples):
        with working(run, SMALL, slots=1) as worker:
            [times] = _taken(worker, "durable", 1, run.sizes.steps)
            transactions.append(_transactions(worker))
        rates.append(_per_s(times))
        times_ms.append(1000 * statistics.median(after - before for before, after in pairwise(times)))
        for peer in PEERS:
            if found := _peer(run, peer, run.sizes.steps):
                peers.setdefault(peer.title, []).append(_per_s(found))
    name = f"one job, {run.sizes.steps:,} steps in a row"
    yield Figure("steps", name, "steps/s", rates, bound=Bound("at least", 2_000))
    yield Figure("steps", "the same, a step, p50", "ms", times_ms, bound=Bound("at most", 0.5))
    yield Figure("steps", "the same, transactions per step", "", transactions, bound=Bound("at most", 1.0))
    for title, found in peers.items():
        yield Figure("steps", f"{title}, the same", "steps/s", found)
        yield Figure("steps", f"one job beside {title}", "steps/s", rates, found, Bound("of reference", 1.0))
    for kind, bound in (("durable", 15_000), ("durable, in one process,", 15_000), ("relaxed", 40_000)):
        samples, together = [], []
        for _ in range(run.sizes.samples):
            with working(run, SMALL, slots=MANY) as worker:
                all_times = _taken(worker, kind, MANY, run.sizes.steps)
                began, ended = min(times[0] for times in all_times), max(times[-1] for times in all_times)
                samples.append(MANY * run.sizes.steps / (ended - began))
                together.append(_transactions(worker))
        yield Figure("steps", f"{MANY} jobs at once, {kind} steps", "steps/s", samples, bound=Bound("at least", bound))
        yield Figure("steps", "the same, transactions per step", "", together, bound=Bound("at most", 0.1))
    yield from _wakes(run)


def _wakes(run: Run) -> Iterator[Figure]:
    """From the return of `send` until the job goes on, in the process that waits for it, or in a new one."""
    for kind, park_s, bound_ms in (("in its process", 30, 3.0), ("in a new process", 0, 10.0)):
        with working(run, SMALL, slots=2, more={"OUTLIVE_PARK_S": str(park_s)}) as worker:
            times_ms = [1000 * _wake_s(worker) for _ in range(run.sizes.wakes)]
        name = f"from send until the job goes on {kind}"
        yield Figure("steps", name, "ms", times_ms, bound=Bound("at most", bound_ms))


def _wake_s(worker: Worker) -> float:
    job = jobs.wakes.enqueue()
    deadline = time.monotonic() + PEER_S
    while job.status() is not State.SUSPENDED:
        if time.monotonic() > deadline:
            raise OutliveError("the job does not begin to wait")
        time.sleep(WAITS_S)
    time.sleep(WAITS_S)  # Its process is parked, or has ended.
    job.send("go")
    sent_at = time.time()
    return job.result(timeout=PEER_S) - sent_at


def _taken(worker: Worker, kind: str, number: int, count: int) -> list[list[float]]:
    """When each step of some jobs was kept."""
    task = jobs.shared_steps if kind.endswith("process,") else jobs.steps
    enqueued = jobs.app.enqueue_many([task.job(kind, count) for _ in range(number)])
    return [job.result(timeout=PEER_S) for job in enqueued]


def _transactions(worker: Worker) -> float:
    [(per_step,)] = worker.database.connection.execute(_TRANSACTIONS).fetchall()
    return float(per_step)


def _per_s(times: Sequence[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


def _peer(run: Run, peer: System, count: int) -> list[float] | None:
    """When each step of a peer was kept; None if it can't be installed here."""
    try:
        python = environments.programs(peer) / "python"
    except environments.Missing:
        return None
    with database(run.free.connection, run.free.url, peer.name) as address:
        words = [str(python), str(Path(DRIVERS, f"steps_with_{peer.name}.py")), str(count)]
        environment = os.environ | {"PEER_POSTGRES": as_url(address), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PEER_S)
    if done.returncode:
        raise OutliveError(f"{peer.title} failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    return [float(time) for time in json.loads(done.stdout.splitlines()[-1])]
