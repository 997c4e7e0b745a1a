"""What the clients of a game ask for: jobs by themselves, jobs that wait for each other, batches, and jobs of a key.

A seed determines all of it, except which earlier jobs a late job waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack
from uuid import UUID, uuid4

from outlive.client.options import BoundJob, JobOptions, OnFailure
from outlive.client.task import Task
from outlive_lab.gameday import jobs

MOST = 8
LONG_PART = 0.02
DEDUPED_PART = 0.05
DEDUPE_KEYS = 3
ASIDE_PART = 0.2
KEYS = 24
KEYED_PART = 0.2
"""How many of the jobs that wait for others have a key too."""
BAD_PART = 0.12
"""How many of the jobs that others wait for, or that are in a batch, fail or kill their process."""
CANCELLED_PART = 0.15
"""How many batches are cancelled."""
HARMFUL_PART = 0.5
"""How many of the crowds that share a process have a job in it that harms it."""
TASKS: dict[Task[..., Any, Any], int] = {
    jobs.note: 12,
    jobs.call: 8,
    jobs.pay: 30,
    jobs.stumble: 10,
    jobs.breed: 5,
    jobs.stamp: 20,
    jobs.post: 15,
    jobs.pace: 12,
    jobs.share: 12,
    jobs.settle: 8,
}
"""The tasks, and how often each is chosen."""
ON_FAILURES: tuple[OnFailure, ...] = ("block", "proceed", "cancel")
DEPENDENTS = 20_000
BAD_TASKS = (jobs.give_up, jobs.give_up, jobs.kill)


@dataclass(frozen=True, slots=True)
class Order:
    """Jobs that are enqueued together, all or none."""

    jobs: list[BoundJob[Any]]
    batch: UUID | None = None
    """The batch that they are in, which the client opens before and closes after them."""
    cancelled: bool = False
    """The client then cancels the batch."""
    signals: int = 0
    """How many signals the first job waits for."""


def choose(rng: random.Random, earlier: Sequence[UUID]) -> Order:
    """`earlier` are jobs that exist, finished or not."""
    kind = rng.choices(list(ORDERS), list(ORDERS.values()))[0]
    return kind(rng, earlier)


def alone(rng: random.Random, _: Sequence[UUID]) -> Order:
    return Order([_single(rng) for _ in range(1 if rng.random() < 0.5 else rng.randint(2, MOST))])


def linked(rng: random.Random, _: Sequence[UUID]) -> Order:
    return Order(_shape(rng, ON_FAILURES))


def late(rng: random.Random, earlier: Sequence[UUID]) -> Order:
    """Jobs that wait for earlier ones, which may end at this very moment."""
    if not earlier:
        return alone(rng, earlier)
    needed = rng.sample(earlier, min(len(earlier), rng.randint(1, 3)))
    return Order([_linked(rng, after=needed, on_failure=rng.choice(ON_FAILURES))])


def batched(rng: random.Random, _: Sequence[UUID]) -> Order:
    """None of its jobs stays blocked, because then the batch would never be done."""
    batch = uuid4()
    found = _shape(rng, ("proceed", "cancel"), batch=batch)
    found += [_linked(rng, batch=batch) for _ in range(rng.randint(0, MOST - len(found)))]
    return Order(found, batch, cancelled=rng.random() < CANCELLED_PART)


def rush(rng: random.Random, _: Sequence[UUID]) -> Order:
    """More jobs of one key than may run at a time, each long enough to overlap with the others."""
    keyed = _keyed(rng)
    tasks = (jobs.note, jobs.pay, jobs.stamp, jobs.stumble)
    count = keyed["concurrency"] + rng.randint(1, 3)
    return Order([rng.choice(tasks).using(**keyed).job(round(rng.uniform(0.05, 0.3), 3)) for _ in range(count)])


def durable(rng: random.Random, _: Sequence[UUID]) -> Order:
    """A job that waits for times, signals and other jobs. The process of one with a key is not parked."""
    task = jobs.endure.using(**_keyed(rng)) if rng.random() < KEYED_PART else jobs.endure
    pause_s, signals = round(rng.uniform(0.05, 3.0), 3), rng.randint(1, 2)
    children = [round(rng.uniform(0.0, 0.3), 3) for _ in range(rng.randint(2, 4))]
    return Order([task.job(rng.randint(3, 6), pause_s, signals, children)], signals=signals)


def beside(rng: random.Random, _: Sequence[UUID]) -> Order:
    """Many jobs that share processes. One of them may harm the others."""
    found = [
        jobs.share.job(round(rng.uniform(0.0, 1.0), 3), rng.choice((0, 0, 0, 2))) for _ in range(rng.randint(10, 40))
    ]
    if rng.random() < HARMFUL_PART:
        harm = rng.choice(("segfault", "exit", "block"))
        found.insert(rng.randrange(len(found)), jobs.share.job(round(rng.uniform(0.0, 0.5), 3), 0, harm))
    return Order(found)


def crowd() -> Order:
    """A job that fails, and many that wait for it and stay blocked."""
    head = jobs.give_up.job(0.5)
    waiting = jobs.note.using(after=head)
    return Order([head, *[waiting.job(0.0) for _ in range(DEPENDENTS)]])


ORDERS: dict[Callable[[random.Random, Sequence[UUID]], Order], int] = {
    alone: 50,
    linked: 15,
    late: 10,
    batched: 12,
    rush: 13,
    durable: 80,
    beside: 40,
}
"""The kinds of orders, and how often each is chosen."""


def _single(rng: random.Random) -> BoundJob[Any]:
    """Mostly short jobs; some long enough for many faults to hit them; a few longer than a short lease."""
    if rng.random() < LONG_PART:
        return rng.choice(
            (jobs.pay.job(round(rng.uniform(4.0, 8.0), 3)), jobs.pace.job(round(rng.uniform(1.5, 3.0), 3)))
        )
    work_s = round(rng.uniform(0.2, 2.0) if rng.random() < 0.15 else rng.uniform(0.0, 0.1), 3)
    if rng.random() < DEDUPED_PART:
        return jobs.note.using(dedupe_key=f"key {rng.randrange(DEDUPE_KEYS)}").job(work_s)
    if rng.random() < ASIDE_PART:
        return jobs.note.using(queue=jobs.ASIDE).job(work_s)
    task = _task(rng)
    if task.policy.max_jobs > 1:
        work_s = min(work_s, 0.3)  # Other jobs wait for the same process.
    return task.job(work_s)


def _shape(rng: random.Random, on_failures: Sequence[OnFailure], *, batch: UUID | None = None) -> list[BoundJob[Any]]:
    """A chain, a diamond, or some jobs and one that waits for all of them."""
    made: list[BoundJob[Any]] = []

    def add(*needed: BoundJob[Any]) -> BoundJob[Any]:
        links: JobOptions = {"after": needed, "on_failure": rng.choice(on_failures)} if needed else {}
        links["batch"] = batch
        made.append(_linked(rng, **links))
        return made[-1]

    match rng.choice(("chain", "diamond", "fan-in")):
        case "chain":
            last = add()
            for _ in range(rng.randint(1, 3)):
                last = add(last)
        case "diamond":
            top = add()
            add(add(top), add(top))
        case _:
            add(*[add() for _ in range(rng.randint(2, 5))])
    return made


def _linked(rng: random.Random, **options: Unpack[JobOptions]) -> BoundJob[Any]:
    task = rng.choice(BAD_TASKS) if rng.random() < BAD_PART else _task(rng)
    task = task.using(**options)
    if rng.random() < KEYED_PART:
        task = task.using(**_keyed(rng))
    return task.job(round(rng.uniform(0.0, 0.1), 3))


def _task(rng: random.Random) -> Task[..., Any, Any]:
    return rng.choices(list(TASKS), list(TASKS.values()))[0]


def _keyed(rng: random.Random) -> JobOptions:
    """Some keys are chosen more often than others. The limit of a key is always the same."""
    number = min(rng.randrange(KEYS), rng.randrange(KEYS))
    return {"concurrency_key": f"gameday {number}", "concurrency": 1 + number % 3}
