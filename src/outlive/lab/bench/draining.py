"""A worker's hot loop without any work in it: end what was claimed and claim the next, over and over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from uuid import uuid4

from outlive import db, store
from outlive.lab.bench.offer import Offer
from outlive.lab.bench.stock import MOST_SOURCES, TASK, Stock
from outlive.model import Claimed, Ended

LOOK_S = 1.0
"""How often a busy worker looks for lanes."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How many attempts were ended in how many seconds, and the rate of each bucket of that time."""

    ended: int
    busy_s: float
    rates: list[float] = field(default_factory=list)


class Drain:
    """One worker on one connection."""

    def __init__(self, connection: db.Connection, *, k: int) -> None:
        self._connection = connection
        self._k = k
        self._worker = uuid4()
        self._offer = Offer(k)
        self._looked_s = -LOOK_S
        self._claimed: list[Claimed] = []

    @property
    def under_way(self) -> int:
        """How many attempts the next turn ends."""
        return len(self._claimed)

    def turn(self) -> int:
        """End what the last turn claimed and claim anew. Returns how many were claimed; 0: nothing is ready."""
        began_s = monotonic()
        if began_s - self._looked_s >= LOOK_S:
            self._look(began_s)
        while True:
            offered = self._offer.next(began_s)
            done = [Ended(job.token) for job in self._claimed]
            turn = db.run(self._connection, store.end_and_claim(self._worker, done, offered, limit=self._k))
            assert not turn.stale, "nobody else ends these attempts"
            self._claimed = turn.claimed
            ended_s = monotonic()
            self._offer.learn(offered, turn.claimed, began_s=began_s, ended_s=ended_s)
            if turn.claimed or not self._look(ended_s):
                return len(turn.claimed)
            began_s = ended_s

    def finish(self) -> None:
        """End what is left and claim nothing."""
        done = [Ended(job.token) for job in self._claimed]
        db.run(self._connection, store.end_and_claim(self._worker, done))
        self._claimed = []

    def _look(self, now_s: float) -> bool:
        self._looked_s = now_s
        states = db.run(self._connection, store.unsourced_lanes([TASK]))
        sourced = db.run(self._connection, store.sourced_lanes([TASK], batch=MOST_SOURCES))
        return self._offer.refresh([*states, *sourced.lanes])


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """Drain for so long; with a `refill` the clock stands still while the stock is filled up again."""

    url: str
    k: int
    seconds: float
    refill: Stock | None = None
    bucket_s: float = 1.0

    def prepare(self) -> Callable[[], Drained]:
        connection = db.connect(self.url, db.PINNED)
        filling = db.connect(self.url)
        drain = Drain(connection, k=self.k)
        left = 0
        if self.refill:
            left = filled_up(filling, self.refill)
        for _ in range(3):  # The server plans the statement now, and not while it is timed.
            left -= drain.turn()

        def timed() -> Drained:
            with connection, filling:
                drained = self._drain(drain, filling, left)
                drain.finish()
            return drained

        return timed

    def _drain(self, drain: Drain, filling: db.Connection, left: int) -> Drained:
        ended, busy_s = 0, 0.0
        rates: list[float] = []
        bucket_ended, bucket_s = 0, 0.0
        while drain.under_way and busy_s < self.seconds:
            if self.refill and left < 2 * self.k:
                self.refill.put(filling, self.refill.count - left)
                left = self.refill.count
            began_s = monotonic()
            ended += drain.under_way
            bucket_ended += drain.under_way
            left -= drain.turn()
            turn_s = monotonic() - began_s
            busy_s += turn_s
            bucket_s += turn_s
            if bucket_s >= self.bucket_s:
                rates.append(bucket_ended / bucket_s)
                bucket_ended, bucket_s = 0, 0.0
        return Drained(ended, busy_s, rates)


def filled_up(connection: db.Connection, stock: Stock) -> int:
    """Bring what is ready of the stock's lane up to its count."""
    row = connection.execute(
        "select count(*) from outlive.waiting where task = %s and source = %s and priority = %s and ready_at <= now()",
        [stock.task, stock.source, stock.priority],
    ).fetchone()
    ready = int(row[0]) if row else 0
    if ready < stock.count:
        stock.put(connection, stock.count - ready)
    return max(ready, stock.count)
