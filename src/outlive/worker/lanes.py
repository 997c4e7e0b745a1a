"""Which lanes a worker claims from next, and from which watermark: by priority first, then in turn.

A more urgent job is always claimed before a less urgent one: lanes that can't be claimed together are claimed in the
order of their priorities. This does no I/O: it is told what was found and claimed, and says what to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from outlive.model import Claimed, Lane, LaneState, Sourced

MAX_OFFERED = 64
MAX_DRY = 32
SLACK = timedelta(milliseconds=20)
"""A watermark stays this far behind the last claimed job, because transactions commit late."""

ASK_AGAIN_S = 5.0
"""How long a worker waits for a closed source before it asks again, at most: an operator may change it."""

_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


class LaneKey(NamedTuple):
    queue: str
    source: str
    """Empty for jobs without a source."""
    task: str
    priority: int


class Lanes:
    def __init__(self) -> None:
        self._marks: dict[LaneKey, datetime | None] = {}
        self._dry: dict[LaneKey, datetime | None] = {}
        """Lanes without a source that were empty lately. They are offered before less urgent lanes."""
        self._closed: dict[str, float] = {}
        """Sources that admit no job now, and when (monotonic) to ask again."""
        self.opens_at: float | None = None
        """When (monotonic) the first source opens that the search has skipped."""

    def found(self, states: Iterable[LaneState]) -> None:
        """The search found these lanes without a source."""
        before = self._dry | self._marks
        self._replace(states, lambda key: not key.source)
        dry = [key for key in before if not key.source and key not in self._marks]
        self._dry = {key: before[key] for key in dry[-MAX_DRY:]}

    def found_sourced(self, found: Sourced, after: tuple[str, str], now: float) -> None:
        """The search found these lanes, among the sources after `after`, as far as it got."""
        self._replace(
            found.lanes,
            lambda key: key.source != "" and after < key[:2] and (found.reached is None or key[:2] <= found.reached),
        )
        opening = [now + wait_s for wait_s in found.waits_s.values() if wait_s <= ASK_AGAIN_S]
        if self.opens_at is not None and self.opens_at > now:
            opening.append(self.opens_at)
        self.opens_at = min(opening, default=None)

    def _replace(self, states: Iterable[LaneState], looked_at: Callable[[LaneKey], bool]) -> None:
        """Known lanes keep their turn. No visible job is before its lane's watermark."""
        ready: dict[LaneKey, datetime | None] = {
            LaneKey(state.queue, state.source, state.task, state.priority): _mark(state.ready_at)
            for state in states
            if state.ready
        }
        kept = {key: mark for key, mark in self._marks.items() if key in ready or not looked_at(key)}
        self._marks = kept | ready

    def offer(
        self,
        tasks: Container[str],
        kind: Callable[[LaneKey], Hashable],
        quota: Callable[[LaneKey], int],
        now: float = 0.0,
    ) -> list[Lane]:
        """The lanes for the next claim: the most urgent first, then in turn; about 64 at most, all of one kind.

        `kind` says what can be claimed together. Kind None: its jobs can't begin now, and no lane that is less urgent
        is offered.
        """
        keys = [key for key in self._marks if key.task in tasks and self._closed.get(key.source, 0.0) <= now]
        keys.sort(key=lambda key: key.priority)
        kinds = [kind(key) for key in keys]
        chosen = next((one for one in kinds if one is not None), None)
        if chosen is None:
            return []
        bound = next((key.priority for key, one in zip(keys, kinds, strict=True) if one != chosen), 9)
        mine = (key for key, one in zip(keys, kinds, strict=True) if one == chosen and key.priority <= bound)
        offered = list(islice(mine, MAX_OFFERED))
        if offered and not offered[0].source:
            least = offered[-1].priority
            offered += [
                key for key in self._dry if key.priority < least and key.task in tasks and kind(key) is not None
            ]
            offered.sort(key=lambda key: key.priority)
        return [Lane(*key, mark=self._marks.get(key, self._dry.get(key)), quota=quota(key)) for key in offered]

    def wait(self, waits_s: Mapping[str, float], now: float) -> None:
        """Don't ask these sources again until they open. The search finds those again that stay closed for long."""
        self._closed = {source: until for source, until in self._closed.items() if until > now}
        self._closed |= {source: now + min(wait_s, ASK_AGAIN_S) for source, wait_s in waits_s.items()}
        if closed := {source for source, wait_s in waits_s.items() if wait_s > ASK_AGAIN_S}:
            self._marks = {key: mark for key, mark in self._marks.items() if key.source not in closed}

    def opens_in_s(self, now: float) -> float | None:
        """When the first closed source with jobs opens; None if no source is closed."""
        waited_for = {key.source for key in self._marks}
        due = [until - now for source, until in self._closed.items() if until > now and source in waited_for]
        return min(due, default=None)

    @property
    def has_sources(self) -> bool:
        return self.opens_at is not None or any(key.source for key in self._marks)

    def claimed(self, offered: list[Lane], jobs: list[Claimed], limit: int) -> None:
        """Move the watermarks, send served lanes to the end of the turn, and note lanes that are empty.

        Those that were not reached, or whose source admits no more now, keep their place: it is their turn next.
        """
        latest: dict[LaneKey, datetime] = {}
        for job in jobs:
            key = LaneKey(job.queue, job.source, job.task, job.priority)
            latest[key] = max(latest.get(key, job.ready_at), job.ready_at)
        served = {key.source for key in latest if key.source}
        for lane in offered:
            key = LaneKey(lane.queue, lane.source, lane.task, lane.priority)
            if key in latest:
                self._marks.pop(key, None)
                self._dry.pop(key, None)
                self._marks[key] = latest[key] - SLACK
            elif len(jobs) < limit and lane.source not in self._closed and lane.source not in served:
                self._marks.pop(key, None)
                if not lane.source:
                    self._dry[key] = lane.mark

    def __bool__(self) -> bool:
        return bool(self._marks)


def _mark(first: datetime) -> datetime | None:
    """The watermark of a lane. Enqueue refuses times before 2000, so a lane with such a job has none."""
    return first - SLACK if first > _EARLIEST else None
