"""How long deaths took to be noticed. Pure, like the checker."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from outlive_lab.gameday import durable, sharing
from outlive_lab.gameday.facts import Facts
from outlive_lab.gameday.history import (
    FREEZES,
    TAKEN_OVER,
    TOLD,
    WORKER_KILLS,
    ZYGOTE_KILLS,
    Attempt,
    Fault,
    Found,
    History,
    Kind,
)
from outlive_lab.gameday.options import Bounds

RECONNECT_S = 5.0
"""How long after an outage workers may still reconnect."""
HOLDING_UP = TAKEN_OVER | FREEZES | ZYGOTE_KILLS | TOLD | {Kind.RELOAD}
"""After these a worker begins no job for a while."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took each time, and its limits."""

    name: str
    points: Sequence[tuple[float, float]]
    """When each sample happened, and how long it took."""
    bound_s: float | None = None
    """The limit of p99."""
    worst_s: float | None = None
    """The limit of every single sample."""

    @property
    def samples_s(self) -> list[float]:
        return [took_s for _, took_s in self.points]

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
        parts = {"p50_s": 0.5, "p99_s": 0.99, "max_s": 1.0}
        seen = {name: self.percentile(part) for name, part in parts.items()}
        return {
            "name": self.name,
            "count": len(self.points),
            **{name: None if value is None else round(value, 4) for name, value in seen.items()},
            "bound_s": self.bound_s,
            "worst_s": self.worst_s,
            "held": self.held,
        }


def measure(history: History, found: Found, bounds: Bounds) -> list[Times]:
    """Deaths of workers, zygotes and children. Those that could not be noticed or recorded at once are judged apart."""
    deaths = list(_deaths(history, found))

    def took(kinds: Collection[Kind], *, apart: bool = False) -> list[tuple[float, float]]:
        return [one.point for one in deaths if one.fault.kind in kinds and one.apart == apart]

    gone = [(one.at_s, one.orphans_gone_s) for one in history.faults if one.orphans_gone_s is not None]
    on_end = [(one.fault.at_s, _on_end_s(history, one)) for one in deaths]
    worst_s = bounds.any_death_s
    wakes: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for one in durable.wakes(Facts(history, found)):
        wakes[_held_up(history, one, found)].append((one.over_s, one.begun_s - one.over_s))
    measured = [
        Times("worker death to claimable again", took(WORKER_KILLS), bounds.worker_death_s, worst_s),
        Times("zygote death to claimable again", took(ZYGOTE_KILLS), bounds.zygote_death_s, worst_s),
        Times("child death to recorded", took({Kind.CHILD}), bounds.child_death_s, worst_s),
        Times("supervisor death to children gone", gone, bounds.orphans_s, worst_s),
        Times("worker death, no database or no witness", took(WORKER_KILLS, apart=True), None, worst_s),
        Times("zygote death, no database or no supervisor", took(ZYGOTE_KILLS, apart=True), None, worst_s),
        Times("child death, no database or no supervisor", took({Kind.CHILD}, apart=True), None, worst_s),
        Times("any death, with the database there on end", on_end, None, bounds.on_end_s),
        Times("a failure with 20,000 dependents to recorded", _crowds(history, found), None, worst_s),
        Times("shared child death to its jobs begun again", _again(history, found), None, worst_s),
        Times("wait over to begun again", wakes[False], bounds.wake_s, worst_s),
        Times("wait over, no database or no worker", wakes[True], None, worst_s),
        *_failovers(history, found, bounds),
    ]
    return [replace(one, points=[_given(history, *point) for point in one.points]) for one in measured]


def _given(history: History, at_s: float, took_s: float) -> tuple[float, float]:
    """The sample without the time in which the host ran other machines on this one's processors."""
    return at_s, took_s - history.machine.stolen_s(at_s, at_s + took_s)


def _failovers(history: History, found: Found, bounds: Bounds) -> Iterator[Times]:
    """From each fault of a primary to the next primary, and from there to the first job that a worker begins."""
    ended = [one for one in history.faults if one.writable_s is not None]
    if not ended:
        return
    begun = sorted(one.started_s for one in found.attempts if one.started_s is not None)
    until = [(one.at_s, one.writable_s - one.at_s) for one in ended if one.writable_s is not None]
    flow = [
        (one.writable_s, next((at_s for at_s in begun if at_s >= one.writable_s), math.inf) - one.writable_s)
        for one in ended
        if one.writable_s is not None
    ]
    yield Times("fault of a primary to the next one", until)
    yield Times("next primary to first job begun", flow, None, bounds.flow_s)


def _held_up(history: History, wake: durable.Wake, found: Found) -> bool:
    """Whether the job could not begin again at once when its wait was over."""
    span = (wake.over_s, wake.begun_s)
    return (
        history.locked({wake.job}, *span)
        or history.away(*span, margin_s=RECONNECT_S)
        or history.frozen(*span, margin_s=RECONNECT_S)
        or not _at_work(history, found, *span)
    )


def _at_work(history: History, found: Found, since_s: float, until_s: float) -> set[str]:
    """The workers that ran jobs before and after this time, and that no fault held up meanwhile or just before."""
    ran = {one.worker for one in found.attempts if (one.started_s or math.inf) <= since_s}
    ran &= {one.worker for one in found.attempts if one.ended_s >= until_s}
    hit = [one for one in history.faults if one.kind in HOLDING_UP]
    return ran - {one.worker for one in hit if since_s - RECONNECT_S <= one.at_s <= until_s}


@dataclass(frozen=True, slots=True)
class _Death:
    """A fault, when the database had it, and whether it could not be noticed or recorded at once."""

    fault: Fault
    ended_s: float
    apart: bool

    @property
    def point(self) -> tuple[float, float]:
        return self.fault.at_s, self.ended_s - self.fault.at_s


def _deaths(history: History, found: Found) -> Iterator[_Death]:
    """A death ends when the last attempt that it left is recorded. A death that left no attempt is no sample."""
    lost: dict[str, list[Attempt]] = defaultdict(list)
    crashed: dict[int, list[Attempt]] = defaultdict(list)
    pids = {start.token: start.pid for start in found.starts}
    for one in found.attempts:
        if one.outcome == "lost":
            lost[one.worker].append(one)
        elif one.outcome == "crashed" and one.token in pids:
            crashed[pids[one.token]].append(one)
    for fault in history.faults:
        others = [one for one in history.faults if one.worker == fault.worker and one is not fault]
        left: list[Attempt] = []
        blinding: frozenset[Kind] = frozenset()  # After these the supervisor notices nothing for a while.
        if fault.kind in WORKER_KILLS:
            # Attempts that were lost earlier, with its zygote, the worker has recorded itself.
            left = [one for one in lost[fault.worker] if one.ended_s > fault.at_s]
        elif fault.kind in ZYGOTE_KILLS:
            # Attempts that ended after their worker was killed or frozen past its lease are no samples.
            graver_s = min((one.at_s for one in others if one.kind in TAKEN_OVER), default=math.inf)
            left = [one for one in lost[fault.worker] if (one.started_s or 0.0) < fault.at_s < one.ended_s <= graver_s]
            blinding = frozenset({Kind.FREEZE})
        elif fault.kind is Kind.CHILD:
            # A later process may have its number.
            later = [one for one in crashed[fault.pid] if (one.started_s or 0.0) < fault.at_s < one.ended_s]
            left = sorted(later, key=lambda one: one.ended_s)[:1]
            blinding = FREEZES
        if left:
            ended_s = max(one.ended_s for one in left)
            blind = any(one.kind in blinding and one.at_s <= ended_s for one in others)
            locked = history.locked({one.job for one in left}, fault.at_s, ended_s)
            away = history.away(fault.at_s, ended_s, margin_s=RECONNECT_S)
            frozen = history.frozen(fault.at_s, ended_s, margin_s=RECONNECT_S)
            yield _Death(fault, ended_s, apart=blind or locked or away or frozen or not fault.watched)


def _again(history: History, found: Found) -> list[tuple[float, float]]:
    """From the kill of a shared child until each of its jobs began again in the same attempt, there or alone."""
    killed = {one.pid: one.at_s for one in history.faults if one.kind is Kind.SHARED}
    pairs = sharing.again(Facts(history, found))
    found_s = ((killed[before.pid], later.at_s) for before, later in pairs if before.pid in killed)
    return [(at_s, later_s - at_s) for at_s, later_s in found_s if later_s > at_s]


def _crowds(history: History, found: Found) -> list[tuple[float, float]]:
    """From the last begin of a job with many dependents to its end."""
    heads = {id for fault in history.faults if fault.kind is Kind.CROWD for id in fault.jobs}
    begun = {start.token: start.at_s for start in found.starts}
    ends = [one for one in found.attempts if one.job in heads and one.state == "failed" and one.token in begun]
    return [(begun[one.token], one.ended_s - begun[one.token]) for one in ends]


def _on_end_s(history: History, death: _Death) -> float:
    """The longest time for which database and machine were there without a break and the death was not recorded."""
    since_s, longest_s = death.fault.at_s, 0.0
    for start, end in history.breaks():
        longest_s = max(longest_s, min(start, death.ended_s) - since_s)
        since_s = max(since_s, end)
    return max(longest_s, death.ended_s - since_s)
