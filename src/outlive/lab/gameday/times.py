"""How long deaths took to be noticed. Pure, like the checker."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from outlive.lab.gameday.history import (
    FREEZES,
    TAKEN_OVER,
    WORKER_KILLS,
    ZYGOTE_KILLS,
    Attempt,
    Fault,
    Found,
    History,
    Kind,
)
from outlive.lab.gameday.options import Bounds

RECONNECT_S = 5.0
"""How long after an outage workers may still reconnect."""

LATEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took each time, and its limits."""

    name: str
    samples_s: Sequence[float]
    bound_s: float | None = None
    """The limit of p99."""
    worst_s: float | None = None
    """The limit of every single sample."""
    points: Sequence[tuple[float, float]] = ()
    """When each sample happened, and how long it took, for the picture."""

    def percentile(self, part: float) -> float | None:
        """By nearest rank, so that it is one of the samples."""
        ordered = sorted(self.samples_s)
        return ordered[math.ceil(part * len(ordered)) - 1] if ordered else None

    @property
    def held(self) -> bool | None:
        """Whether the limits hold; None if there is no limit or no sample."""
        asked = [(self.percentile(part), most_s) for part, most_s in ((0.99, self.bound_s), (1.0, self.worst_s))]
        answers = [seen <= most_s for seen, most_s in asked if seen is not None and most_s is not None]
        return all(answers) if answers else None

    @property
    def words(self) -> str:
        """The limits, for people."""
        asked = (("p99", self.bound_s), ("max", self.worst_s))
        return ", ".join(f"{name} ≤ {most_s:g} s" for name, most_s in asked if most_s is not None)

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
            "worst_s": self.worst_s,
            "held": self.held,
        }


def measure(history: History, found: Found, bounds: Bounds) -> list[Times]:
    """Deaths of workers, zygotes and children. Those that could not be noticed or recorded at once are judged apart."""
    deaths = [list(some(history, found)) for some in (_worker_deaths, _zygote_deaths, _child_deaths)]
    (workers, apart), (zygotes, zygotes_apart), (children, children_apart) = (
        _sorted_out(history, some) for some in deaths
    )
    on_end = [(one.fault.at_s, _on_end_s(history, one)) for some in deaths for one in some]
    gone = [
        (fault.at_s, fault.orphans_gone_s)
        for fault in history.faults
        if fault.kind is Kind.SUPERVISOR and fault.orphans_gone_s is not None
    ]
    worst_s = bounds.any_death_s
    return [
        _times("worker death to claimable again", workers, bounds.worker_death_s, worst_s),
        _times("zygote death to claimable again", zygotes, bounds.zygote_death_s, worst_s),
        _times("child death to recorded", children, bounds.child_death_s, worst_s),
        _times("supervisor death to children gone", gone, bounds.orphans_s, worst_s),
        _times("worker death, no database or no witness", apart, None, worst_s),
        _times("zygote death, no database or no supervisor", zygotes_apart, None, worst_s),
        _times("child death, no database or no supervisor", children_apart, None, worst_s),
        _times("any death, with the database there on end", on_end, None, bounds.on_end_s),
    ]


Sample = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Death:
    """A fault, how long it took to be noticed, the jobs concerned, and whether it could be noticed at once."""

    fault: Fault
    took_s: float
    jobs: frozenset[UUID]
    seen: bool = True


def _times(name: str, samples: Sequence[Sample], bound_s: float | None, worst_s: float) -> Times:
    return Times(name, [took_s for _, took_s in samples], bound_s, worst_s, samples)


def _on_end_s(history: History, death: _Death) -> float:
    """The longest time for which the database was there without a break and did not have the death."""
    since_s, until_s = death.fault.at_s, death.fault.at_s + death.took_s
    longest_s = 0.0
    for start, end in sorted(history.outages):
        longest_s = max(longest_s, min(start, until_s) - since_s)
        since_s = max(since_s, end)
    return max(longest_s, until_s - since_s)


def _sorted_out(history: History, deaths: Sequence[_Death]) -> tuple[list[Sample], list[Sample]]:
    fair: list[Sample] = []
    apart: list[Sample] = []
    for one in deaths:
        since_s, until_s = one.fault.at_s, one.fault.at_s + one.took_s
        hidden = not one.seen or history.away(since_s, until_s, margin_s=RECONNECT_S)
        unfair = hidden or history.locked(one.jobs, since_s, until_s)
        (apart if unfair else fair).append((since_s, one.took_s))
    return fair, apart


def _worker_deaths(history: History, found: Found) -> Iterator[_Death]:
    """A death lasts until the last attempt of the worker is recorded. A worker that ran no job is no sample."""
    lost = _lost(found)
    for fault in history.faults:
        if fault.kind in WORKER_KILLS:
            # Attempts that were lost earlier, with its zygote, the worker has recorded itself.
            left = [one for one in lost[fault.worker] if one.ended_s > fault.at_s]
            if left:
                took_s = max(one.ended_s for one in left) - fault.at_s
                yield _Death(fault, took_s, frozenset(one.job for one in left), seen=fault.watched)


def _lost(found: Found) -> dict[str, list[Attempt]]:
    """The lost attempts, by the name of their worker."""
    names = found.worker_names()
    lost: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in found.attempts:
        if attempt.outcome == "lost" and attempt.worker is not None:
            lost[names.get(attempt.worker, "?")].append(attempt)
    return lost


def _zygote_deaths(history: History, found: Found) -> Iterator[_Death]:
    """As for a worker. Attempts that ended after their worker was killed or frozen past its lease are no samples."""
    lost = _lost(found)
    for fault in history.faults:
        if fault.kind in ZYGOTE_KILLS:
            others = [one for one in history.faults if one.worker == fault.worker and one is not fault]
            graver = [one.at_s for one in others if one.kind in TAKEN_OVER]
            left = [
                one
                for one in lost[fault.worker]
                if (one.started_s or 0.0) < fault.at_s < one.ended_s and not any(at_s < one.ended_s for at_s in graver)
            ]
            if left:
                ended_s = max(one.ended_s for one in left)
                blind = any(one.kind is Kind.FREEZE and one.at_s <= ended_s for one in others)
                yield _Death(fault, ended_s - fault.at_s, frozenset(one.job for one in left), seen=not blind)


def _child_deaths(history: History, found: Found) -> Iterator[_Death]:
    """A child that was idle, or whose worker died too, is no sample."""
    crashes = {one.token: one for one in found.attempts if one.outcome == "crashed"}
    by_pid: dict[int, list[Attempt]] = defaultdict(list)
    for start in found.starts:
        if crash := crashes.get(start.token):
            by_pid[start.pid].append(crash)
    frozen = [fault for fault in history.faults if fault.kind in FREEZES]
    for fault in history.faults:
        if fault.kind is Kind.CHILD:
            later = [crash for crash in by_pid[fault.pid] if 0 < crash.ended_s - fault.at_s < LATEST_S]
            if later:
                first = min(later, key=lambda crash: crash.ended_s)
                # A frozen supervisor notices nothing.
                blind = any(one.worker == fault.worker and one.at_s <= first.ended_s for one in frozen)
                yield _Death(fault, first.ended_s - fault.at_s, frozenset({first.job}), seen=not blind)
