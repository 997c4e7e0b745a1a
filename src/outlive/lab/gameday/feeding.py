"""The clients of a game: threads that enqueue jobs, one by one and in batches, and record the answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Feeding:
    """Keeps `target` jobs unfinished."""

    seed: int
    target: int
    clock: Callable[[], float]
    asks: list[Ask] = field(default_factory=list)
    seen: int = 0
    """How many jobs were unfinished when the game last counted them."""
    since: int = 0
    """How many jobs were enqueued since then."""
    stopped: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(CLIENTS):
            rng = random.Random(f"{self.seed} client {number}")
            thread = threading.Thread(target=self._run, args=(rng,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Returns when every client has its last answer, or has stopped waiting for it."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def counted(self, unfinished: int) -> None:
        self.seen, self.since = unfinished, 0

    def _run(self, rng: random.Random) -> None:
        while not self.stopped.is_set():
            if self.seen + self.since >= self.target:
                self.stopped.wait(PAUSE_S)
                continue
            batch = [choose(rng) for _ in range(1 if rng.random() < 0.5 else rng.randint(2, MAX_BATCH))]
            self.since += len(batch)
            answer, ids = _ask(batch)
            self.asks += [Ask(id, answer, self.clock()) for id in ids]
            if answer is not Answer.OK:
                self.stopped.wait(PAUSE_S)


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
    if task.policy.recycle_after > 1:
        work_s = min(work_s, 0.3)  # Other jobs wait for the same process.
    return task.job(work_s)
