"""How long it took until deaths were noticed. Pure, like the checker."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlive.gameday.asked import Bounds
from outlive.gameday.history import WORKER_KILLS, Attempt, Fault, Found, History, Kind

RECONNECT_S = 5.0
"""How long after the database is back workers may still be on their way to it."""

LATEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took each time, and what is asked of it."""

    name: str
    samples_s: Sequence[float]
    bound_s: float | None = None
    points: Sequence[tuple[float, float]] = ()
    """When each of them was, for the picture."""

    def percentile(self, part: float) -> float | None:
        """By nearest rank: a value that was really seen."""
        ordered = sorted(self.samples_s)
        return ordered[math.ceil(part * len(ordered)) - 1] if ordered else None

    @property
    def held(self) -> bool | None:
        """None: nothing is asked of it, or nothing was seen."""
        p99 = self.percentile(0.99)
        return None if self.bound_s is None or p99 is None else p99 <= self.bound_s

    def as_json(self) -> dict[str, object]:
        def shown(value: float | None) -> float | None:
            return None if value is None else round(value, 4)

        return {
            "name": self.name,
            "count": len(self.samples_s),
            "p50_s": shown(self.percentile(0.5)),
            "p99_s": shown(self.percentile(0.99)),
            "max_s": shown(self.percentile(1.0)),
            "bound_s": self.bound_s,
            "held": self.held,
        }


def measure(history: History, found: Found, bounds: Bounds) -> list[Times]:
    """Deaths of workers and of children; those around an absence of the database or without a witness apart."""
    workers, apart = _sorted_out(history, _worker_deaths(history, found))
    children, children_apart = _sorted_out(history, _child_deaths(history, found))
    gone = [
        (fault.at_s, fault.orphans_gone_s)
        for fault in history.faults
        if fault.kind is Kind.SUPERVISOR and fault.orphans_gone_s is not None
    ]
    return [
        _times("worker death to claimable again", workers, bounds.worker_death_s),
        _times("child death to recorded", children, bounds.child_death_s),
        _times("supervisor death to children gone", gone, bounds.orphans_s),
        _times("worker death, no database or no witness", apart),
        _times("child death, no database", children_apart),
    ]


Sample = tuple[float, float]


def _times(name: str, samples: Sequence[Sample], bound_s: float | None = None) -> Times:
    return Times(name, [took_s for _, took_s in samples], bound_s, samples)


def _sorted_out(history: History, deaths: Iterator[tuple[Fault, float]]) -> tuple[list[Sample], list[Sample]]:
    fair: list[Sample] = []
    apart: list[Sample] = []
    for fault, took_s in deaths:
        unfair = not fault.watched or history.away(fault.at_s, fault.at_s + took_s, margin_s=RECONNECT_S)
        (apart if unfair else fair).append((fault.at_s, took_s))
    return fair, apart


def _worker_deaths(history: History, found: Found) -> Iterator[tuple[Fault, float]]:
    """A death took as long as the last of the attempts that it left; one that ran nothing is no sample."""
    names = {worker.id: worker.name for worker in found.workers}
    lost: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in found.attempts:
        if attempt.outcome == "lost" and attempt.worker is not None:
            lost[names.get(attempt.worker, "?")].append(attempt)
    for fault in history.faults:
        if fault.kind in WORKER_KILLS:
            # Before it was killed it may have lost others with its zygote; those it has recorded itself.
            took = [one.ended_s - fault.at_s for one in lost[fault.worker] if one.ended_s > fault.at_s]
            if took:
                yield fault, max(took)


def _child_deaths(history: History, found: Found) -> Iterator[tuple[Fault, float]]:
    """A child that was idle, or whose worker died as well, is no sample."""
    crashes = {one.token: one for one in found.attempts if one.outcome == "crashed"}
    by_pid: dict[int, list[float]] = defaultdict(list)
    for start in found.starts:
        if crash := crashes.get(start.token):
            by_pid[start.pid].append(crash.ended_s)
    frozen = [fault for fault in history.faults if fault.kind in (Kind.FREEZE, Kind.OVERDUE)]
    for fault in history.faults:
        if fault.kind is Kind.CHILD:
            took = min((at_s - fault.at_s for at_s in by_pid[fault.pid] if at_s > fault.at_s), default=LATEST_S)
            # A supervisor that is frozen sees nothing.
            stopped = any(one.worker == fault.worker and one.at_s <= fault.at_s + took for one in frozen)
            if took < LATEST_S and not stopped:
                yield fault, took
