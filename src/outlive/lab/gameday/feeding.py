"""The clients of a game: threads that enqueue jobs, one by one and in batches, and record the answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from outlive.client.task import BoundJob, Task
from outlive.errors import DatabaseUnreachable, OutliveError
from outlive.lab.gameday import jobs
from outlive.lab.gameday.history import Answer, Ask

CLIENTS = 2
PAUSE_S = 0.02
MAX_BATCH = 8
LONG_PART = 0.02
KEYED_PART = 0.05
KEYS = 3
TASKS: dict[Task[[float], Any, Any], int] = {
    jobs.note: 12,
    jobs.call: 8,
    jobs.pay: 30,
    jobs.stumble: 10,
    jobs.breed: 5,
    jobs.stamp: 20,
    jobs.post: 15,
}
"""The tasks, and how often each is chosen."""


class Feeding:
    """Keeps `target` jobs unfinished, and adds the answers to `asks`."""

    def __init__(self, seed: int, asks: list[Ask], *, target: int, clock: Callable[[], float]) -> None:
        self._seed, self._asks, self._target, self._clock = seed, asks, target, clock
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._unfinished = 0
        """The last count of unfinished jobs, and the jobs that were enqueued since."""

    def start(self) -> None:
        for number in range(CLIENTS):
            rng = random.Random(f"{self._seed} client {number}")
            self._threads.append(threading.Thread(target=self._run, args=(rng,), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Returns when every client has its last answer, or has stopped waiting for it."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def counted(self, unfinished: int) -> None:
        self._unfinished = unfinished

    def _run(self, rng: random.Random) -> None:
        while not self._stopped.is_set():
            if self._unfinished >= self._target:
                self._stopped.wait(PAUSE_S)
                continue
            batch = [choose(rng) for _ in range(1 if rng.random() < 0.5 else rng.randint(2, MAX_BATCH))]
            self._unfinished += len(batch)
            answer, ids = _ask(batch)
            self._asks += [Ask(id, answer, self._clock()) for id in ids]
            if answer is not Answer.OK:
                self._stopped.wait(PAUSE_S)


def _ask(batch: list[BoundJob[Any]]) -> tuple[Answer, list[UUID]]:
    """Enqueue all of a batch or nothing. If a key is taken, the answer names the job that has it."""
    asked = [job.request.id for job in batch]
    try:
        return Answer.OK, [job.id for job in jobs.app.enqueue_many(batch)]
    except DatabaseUnreachable:
        return Answer.UNKNOWN, asked
    except OutliveError:
        return Answer.REFUSED, asked


def choose(rng: random.Random) -> BoundJob[Any]:
    """Mostly short jobs; some long enough for many faults to hit them; a few longer than a short lease."""
    if rng.random() < LONG_PART:
        return jobs.pay.job(round(rng.uniform(4.0, 8.0), 3))
    work_s = round(rng.uniform(0.2, 2.0) if rng.random() < 0.15 else rng.uniform(0.0, 0.1), 3)
    if rng.random() < KEYED_PART:
        return jobs.note.using(dedupe_key=f"key {rng.randrange(KEYS)}").job(work_s)
    task = rng.choices(list(TASKS), list(TASKS.values()))[0]
    if task.policy.max_jobs > 1:
        work_s = min(work_s, 0.3)  # Other jobs wait for the same process.
    return task.job(work_s)
