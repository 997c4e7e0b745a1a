"""The throughput of a real worker, by the database's clock: alone, and beside something else."""

from collections.abc import Iterable, Iterator
from typing import Any

from outlive.client.options import BoundJob
from tests import faults
from tests.driving.making import Queue
from tests.waiting import eventually

ROUNDS = 3
MOST_ROUNDS = 10
PATIENCE_S = 120.0


def seconds(queue: Queue, jobs: Iterable[BoundJob[Any]]) -> float:
    """Enqueue these jobs; returns the time from the start of the first one to the end of the last one."""
    ids = [job.id for job in faults.app.enqueue_many(jobs)]
    done = "select count(*) = %s from outlive.attempts where job_id = any(%s) and outcome = 'succeeded'"
    eventually(lambda: queue.execute(done, [len(ids), ids]).fetchone() == (True,), within_s=PATIENCE_S)
    took = "select extract(epoch from max(ended_at) - min(started_at)) from outlive.attempts where job_id = any(%s)"
    [(took_s,)] = queue.execute(took, [ids]).fetchall()
    return float(took_s)


def rounds(alone_s: list[float], beside_s: list[float], least: float) -> Iterator[int]:
    """A few rounds, and some more if the machine was too busy with other work to show the rate in these."""
    for n in range(MOST_ROUNDS):
        if n < ROUNDS or kept(alone_s, beside_s) < least:
            yield n


def kept(alone_s: list[float], beside_s: list[float]) -> float:
    """The part of the throughput that is left, by the best round of each: other work of the machine only slows."""
    part = min(alone_s) / min(beside_s)
    shown = [", ".join(f"{one:.2f}" for one in some) for some in (alone_s, beside_s)]
    print(f"{part:.0%} kept: {shown[0]} s alone, {shown[1]} s beside it")
    return part
