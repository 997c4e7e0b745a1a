"""Which lanes a worker offers to its next claim, from where on, and in whose turn: this is fairness.

Pure: it is told what was found and claimed, and says what to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from outlive.model import Claimed, Lane, LaneState

MAX_OFFERED = 64
SLACK = timedelta(milliseconds=20)
"""Transactions commit late: a watermark stays this far behind what was claimed."""

ASK_AGAIN_S = 5.0
"""A source may be changed by hand while a worker waits for it: no worker waits longer before it looks."""

Key = tuple[str, str, str, int]


class Lanes:
    def __init__(self) -> None:
        self._marks: dict[Key, datetime | None] = {}
        self._closed: dict[str, float] = {}
        """Sources that admit nobody now, and when (monotonic) to ask them again."""

    def found(self, states: Iterable[LaneState]) -> None:
        """What has something now. Every watermark is forgotten: the next picks scan from the start."""
        found = ((state.queue, state.source, state.task, state.priority) for state in states if state.ready)
        ready: dict[Key, datetime | None] = dict.fromkeys(found)
        # Lanes known before keep their place in the line, so that turns go on.
        known: dict[Key, datetime | None] = {key: None for key in self._marks if key in ready}
        self._marks = known | ready

    def offer(self, quota: int, wanted: Callable[[Key], bool], now: float = 0.0) -> list[Lane]:
        """The most urgent first, then in turn; at most some 64. None of a source that said to ask later."""
        keys = [key for key in self._marks if wanted(key) and self._closed.get(key[1], 0.0) <= now]
        keys.sort(key=lambda key: key[3])
        return [Lane(*key, mark=self._marks[key], quota=quota) for key in keys[:MAX_OFFERED]]

    def wait(self, waits_s: Mapping[str, float], now: float) -> None:
        """Don't ask these sources before."""
        self._closed = {source: until for source, until in self._closed.items() if until > now}
        self._closed |= {source: now + min(wait_s, ASK_AGAIN_S) for source, wait_s in waits_s.items()}

    def opens_in_s(self, now: float) -> float | None:
        """When a source that has jobs here may admit one; None if none is waited for."""
        waited_for = {key[1] for key in self._marks}
        due = [until - now for source, until in self._closed.items() if until > now and source in waited_for]
        return min(due, default=None)

    def claimed(self, offered: list[Lane], jobs: list[Claimed], limit: int) -> None:
        """Move the watermarks, send those that were served to the end of the line, and drop those that ran dry.

        Those that were not reached, or whose source admits nobody now, keep their place: it is their turn next.
        """
        latest: dict[Key, datetime] = {}
        for job in jobs:
            key = (job.queue, job.source, job.task, job.priority)
            latest[key] = max(latest.get(key, job.ready_at), job.ready_at)
        for lane in offered:
            key = (lane.queue, lane.source, lane.task, lane.priority)
            if key in latest:
                self._marks.pop(key, None)
                self._marks[key] = latest[key] - SLACK
            elif len(jobs) < limit and lane.source not in self._closed:
                self._marks.pop(key, None)

    def __bool__(self) -> bool:
        return bool(self._marks)
