"""The clients of a game: threads that give orders, and record the answers."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from outlive.client.job import Job
from outlive.errors import DatabaseUnreachable, OutliveError
from outlive_lab.gameday import jobs, orders
from outlive_lab.gameday.history import Answer, Ask, AskedBatch, Fault, History, Links
from outlive_lab.gameday.orders import Order
from outlive_lab.gameday.signals import Signals
from outlive_lab.gameday.tables import BATCH

CLIENTS = 2
PAUSE_S = 0.02
EARLIER = 30
"""How many of the last jobs another one may wait for."""
PATIENCE_S = 20.0
"""How long a client repeats a batch: longer than the database is away or read-only."""


class Feeding:
    """Keeps `target` jobs unfinished, and adds the answers to the history."""

    def __init__(self, seed: int, history: History, *, target: int, clock: Callable[[], float]) -> None:
        self._seed, self._history, self._target, self._clock = seed, history, target, clock
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._unfinished = 0
        """The last count of unfinished jobs, and the jobs that were enqueued since."""
        self._earlier: deque[UUID] = deque(maxlen=EARLIER)
        self._crowds: deque[Fault] = deque()
        self._signals = Signals(seed)

    def start(self) -> None:
        for number in range(CLIENTS):
            rng = random.Random(f"{self._seed} client {number}")
            self._threads.append(threading.Thread(target=self._run, args=(rng,), daemon=True))
            self._threads[-1].start()
        self._signals.start()

    def stop(self) -> None:
        """Returns when every client has its last answer, or has stopped waiting for it."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._signals.stop()

    def counted(self, unfinished: int) -> None:
        self._unfinished = unfinished

    def crowd(self, fault: Fault) -> None:
        """Let a client enqueue a job that fails, and its many dependents."""
        self._crowds.append(fault)

    def _ask_crowd(self, fault: Fault) -> None:
        order = orders.crowd()
        ids = _ids(order)
        answer = _insist(lambda: jobs.app.enqueue_many(order.jobs))
        self._note(order, answer if answer is Answer.OK else Answer.UNKNOWN, ids)
        fault.jobs = frozenset(ids[:1])

    def _note(self, order: Order, answer: Answer, ids: list[UUID]) -> None:
        for id, job in zip(ids, order.jobs, strict=True):
            links = msgspec.json.decode(job.request.links or b"{}", type=Links)
            self._history.asks.append(Ask(id, answer, self._clock(), links))

    def _run(self, rng: random.Random) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(IndexError):
                self._ask_crowd(self._crowds.popleft())
            if self._unfinished >= self._target:
                self._stopped.wait(PAUSE_S)
                continue
            order = orders.choose(rng, tuple(self._earlier))
            self._unfinished += len(order.jobs)
            answer, ids = self._ask(order) if order.batch is None else self._ask_batch(order, order.batch)
            self._note(order, answer, ids)
            self._signals.send_to(ids[0], order.signals)
            if answer is Answer.OK:
                self._earlier.extend(ids)
            else:
                self._stopped.wait(PAUSE_S)

    def _ask(self, order: Order) -> tuple[Answer, list[UUID]]:
        """Enqueue all jobs or none. If a dedupe key is taken, the answer names the job that has it."""
        made: list[Job[Any]] = []
        answer = _answer(lambda: made.extend(jobs.app.enqueue_many(order.jobs)))
        return answer, [job.id for job in made] or _ids(order)

    def _ask_batch(self, order: Order, id: UUID) -> tuple[Answer, list[UUID]]:
        """If the batch is cancelled, it is cancelled at once: some of its jobs may have ended."""
        asked = AskedBatch(id=id, cancelled=order.cancelled)
        self._history.batches.append(asked)
        asked.answer = _insist(lambda: _fill(order, id))
        if order.cancelled:
            asked.answer = _insist(jobs.app.get_batch(id).cancel)
        asked.at_s = self._clock()
        return Answer.OK if asked.answer is Answer.OK else Answer.UNKNOWN, _ids(order)


def _fill(order: Order, id: UUID) -> None:
    success, failure, done = (jobs.tell.job(id, event) for event in ("success", "failure", "done"))
    with jobs.app.batch(BATCH, id=id, on_success=success, on_failure=failure, on_done=done):
        jobs.app.enqueue_many(order.jobs)


def _insist(call: Callable[[], object]) -> Answer:
    """Repeat a call until it is answered. That makes no job twice: all have their own ids, and no dedupe key."""
    patient_until = time.monotonic() + PATIENCE_S
    while (answer := _answer(call)) is not Answer.OK and time.monotonic() < patient_until:
        time.sleep(PAUSE_S)
    return answer


def _answer(call: Callable[[], object]) -> Answer:
    try:
        call()
    except DatabaseUnreachable:
        return Answer.UNKNOWN
    except OutliveError:
        return Answer.REFUSED
    return Answer.OK


def _ids(order: Order) -> list[UUID]:
    return [job.request.id for job in order.jobs]
