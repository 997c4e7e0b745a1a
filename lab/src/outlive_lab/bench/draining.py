"""The claim loop of a worker without the jobs: it ends the attempts of the last claim and claims the next jobs.

The worker's own `Lanes` decides which lanes are offered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from time import monotonic
from uuid import uuid4

from outlive import db, store
from outlive.model import Claimed, Ended
from outlive.worker.claiming.lane_finder import LOOK_S
from outlive.worker.claiming.lanes import LaneKey, Lanes
from outlive_lab.bench.processes import Probing
from outlive_lab.bench.stock import TASK, Stock

ALL_SOURCES = 1_000_000


@dataclass(frozen=True, slots=True)
class Drained:
    """How many attempts ended in how many seconds, and the rates of the parts of that time."""

    ended: int
    busy_s: float
    rates: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return self.ended / self.busy_s


def find_lanes(connection: db.Connection, lanes: Lanes) -> None:
    unsourced = db.run(connection, store.unsourced_lanes([TASK]))
    sourced = db.run(connection, store.sourced_lanes([TASK], batch=ALL_SOURCES))
    lanes.found(unsourced.lanes)
    lanes.found_sourced(sourced, ("", ""), monotonic())


class Drain:
    """One worker with `k` slots, on one connection."""

    def __init__(self, connection: db.Connection, *, k: int) -> None:
        self._connection, self._k = connection, k
        self._worker, self._lanes = uuid4(), Lanes()
        self._searched_at = -LOOK_S
        self._claimed: list[Claimed] = []

    @property
    def running(self) -> int:
        """How many attempts the next turn ends."""
        return len(self._claimed)

    def turn(self) -> int:
        """End and claim. Returns how many jobs were claimed; 0 means that no job is ready."""
        if monotonic() - self._searched_at >= LOOK_S:
            self._search()
        while not self._end_and_claim():
            self._search()
            if not self._lanes:
                break
            time.sleep(self._lanes.opens_in_s(monotonic()) or 0.0)
        return len(self._claimed)

    def _search(self) -> None:
        find_lanes(self._connection, self._lanes)
        self._searched_at = monotonic()

    def _end_and_claim(self) -> bool:
        """As a worker does, in one statement."""
        offered = self._lanes.offer({TASK}, self._kind, lambda _: self._k, monotonic())
        done = [Ended(job.token) for job in self._claimed]
        turn = db.run(self._connection, store.end_and_claim(self._worker, done, offered, limit=self._k))
        assert not turn.refused, "only this worker ends these attempts"
        self._lanes.wait(turn.waits_s, monotonic())
        self._lanes.claimed(offered, turn.claimed, self._k)
        self._claimed = turn.claimed
        return bool(self._claimed)

    def finish(self) -> None:
        """End the last attempts and claim nothing."""
        db.run(self._connection, store.end_and_claim(self._worker, [Ended(job.token) for job in self._claimed]))

    def _kind(self, key: LaneKey) -> object:
        return ("source", key.priority) if self._lanes.asks(key) else "fresh"


def drain(url: str, *, k: int, seconds: float, refill: Stock | None = None, part_s: float = 1.0) -> Probing[Drained]:
    """Drain for some seconds. The clock stands still while the stock is filled up again to `refill`."""
    with db.connect(url, db.PINNED) as connection, db.connect(url) as filling:
        drain = Drain(connection, k=k)
        left = refill.fill_up(filling) if refill else 0
        for _ in range(3):  # The server plans the statements before they are timed.
            left -= drain.turn()
        yield
        ended, busy_s, rates = 0, 0.0, list[float]()
        part_began = (0, 0.0)
        while drain.running and busy_s < seconds:
            if refill and left < 2 * k:
                refill.put(filling, refill.count - left)
                left = refill.count
            began_s = monotonic()
            ended += drain.running
            left -= drain.turn()
            busy_s += monotonic() - began_s
            if busy_s - part_began[1] >= part_s:
                rates.append((ended - part_began[0]) / (busy_s - part_began[1]))
                part_began = (ended, busy_s)
        drain.finish()
        return Drained(ended, busy_s, rates)
