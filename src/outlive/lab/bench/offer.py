"""Which lanes a draining worker offers next, and from which watermark: in turn, and never more than some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from outlive import store
from outlive.model import Claimed, Lane, LaneState

AT_ONCE = 64
RESCAN_SHARE = 0.05
Key = tuple[str, str, str, int]


class Offer:
    """The lanes known to have something, the next to be offered first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: list[Key] = []
        self._marks: dict[Key, datetime] = {}
        self._rescan_at_s = 0.0
        self._rescanning = False

    def refresh(self, states: Iterable[LaneState]) -> bool:
        """Take up what the store has found; the order of those known stays. False: nothing is ready."""
        ready = {(state.queue, state.source, state.task, state.priority): None for state in states if state.ready}
        self._lanes = [key for key in self._lanes if key in ready]
        known = set(self._lanes)
        self._lanes += [key for key in ready if key not in known]
        return bool(self._lanes)

    def next(self, now_s: float) -> list[Lane]:
        """Whom to offer now. From time to time from the start: transactions that commit late lie behind the mark."""
        offered = self._lanes[:AT_ONCE]
        quota = -(-self._limit // max(1, len(offered)))
        self._rescanning = now_s >= self._rescan_at_s
        marks = {} if self._rescanning else self._marks
        return [Lane(*key, mark=marks.get(key), quota=quota) for key in offered]

    def learn(self, offered: Sequence[Lane], claimed: Sequence[Claimed], *, began_s: float, ended_s: float) -> None:
        """Move the marks, drop lanes that are empty, and let those that were not reached be the next."""
        if self._rescanning:
            self._rescan_at_s = ended_s + (ended_s - began_s) / RESCAN_SHARE
        counts: dict[Key, int] = {}
        latest: dict[Key, datetime] = {}
        for job in claimed:
            key = (job.queue, job.source, job.task, job.priority)
            counts[key] = counts.get(key, 0) + 1
            if key not in latest or job.ready_at > latest[key]:
                latest[key] = job.ready_at
        keys = [(lane.queue, lane.source, lane.task, lane.priority) for lane in offered]
        full = len(claimed) >= self._limit
        reached = max((n for n, key in enumerate(keys) if key in counts), default=-1) + 1 if full else len(keys)
        served = []
        for n, (key, lane) in enumerate(zip(keys[:reached], offered, strict=False), start=1):
            short = counts.get(key, 0) < lane.quota and not (full and n == reached)
            if key in latest and not short:
                self._marks[key] = latest[key] - store.WATERMARK_SLACK
            if short:
                self._marks.pop(key, None)
            if not short or lane.mark is not None:
                served.append(key)
        self._lanes = keys[reached:] + self._lanes[len(keys) :] + served
