"""Which lanes a worker claims from next, and from which watermark: by priority first, then in turn. This does no I/O.

Lanes that can't be claimed together are claimed in the order of their priorities. Among equally urgent ones, lanes with
and without a source are claimed alternately: sources may be thousands, and each statement serves a few.
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
"""A watermark stays this far behind the last claimed job, because transactions commit late. A lane that has more jobs
than a claim takes needs no slack: the next search finds the late ones, and claims don't read thousands of dead rows."""

ASK_AGAIN_S = 5.0
"""How long a worker waits for a closed source before it asks again, at most: an operator may change it."""

SATED, NEEDS_SLOT = "sated", "needs a slot"
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
        self._admitting: set[str] = set()
        """Sources that need not be asked."""
        self._closed: dict[str, float] = {}
        """Sources that admit no job now, and when (monotonic) to ask again."""
        self.opens_at: float | None = None
        """When (monotonic) the first source opens that the search has skipped."""
        self._sourced_last: dict[int, bool] = {}
        """For each priority: whether the last claim was of lanes with a source."""

    def found(self, states: Iterable[LaneState], paused: Container[str] = ()) -> None:
        """The search found these lanes without a source. The lanes of paused queues are forgotten."""
        before = {key: mark for key, mark in (self._dry | self._marks).items() if key.queue not in paused}
        self._replace(states, lambda key: not key.source)
        dry = [key for key in before if not key.source and key not in self._marks]
        self._dry = {key: before[key] for key in dry[-MAX_DRY:]}

    def serve(self, queues: Container[str] | None) -> None:
        """Forget the lanes of other queues; None: all are served."""
        if queues is not None:
            self._marks = {key: mark for key, mark in self._marks.items() if key.queue in queues}
            self._dry = {key: mark for key, mark in self._dry.items() if key.queue in queues}

    def add(self, keys: Iterable[LaneKey]) -> None:
        """These lanes have jobs without a source. Those that are known keep their turn and their watermark."""
        for key in keys:
            self._marks.setdefault(key, self._dry.pop(key, None))

    def add_dry(self) -> None:
        """The lanes that were empty lately may have jobs again."""
        self.add(list(self._dry))

    def found_sourced(self, found: Sourced, after: tuple[str, str], now: float) -> None:
        """The search found these lanes, among the sources after `after`, as far as it got."""
        self._replace(
            found.lanes,
            lambda key: key.source != "" and after < key[:2] and (found.reached is None or key[:2] <= found.reached),
        )
        self._admitting -= {lane.source for lane in found.lanes if not lane.admits_all}
        self._admitting |= {lane.source for lane in found.lanes if lane.admits_all}
        self._admitting &= {key.source for key in self._marks}
        opening = [now + wait_s for wait_s in found.waits_s.values() if wait_s <= ASK_AGAIN_S]
        if self.opens_at is not None and self.opens_at > now:
            opening.append(self.opens_at)
        self.opens_at = min(opening, default=None)

    def asks(self, key: LaneKey) -> bool:
        """Whether its source must be asked."""
        return key.source != "" and key.source not in self._admitting

    def _replace(self, states: Iterable[LaneState], looked_at: Callable[[LaneKey], bool]) -> None:
        """Known lanes keep their turn. No visible job is before its lane's watermark."""
        ready: dict[LaneKey, datetime | None] = {
            lane_key(state): _mark(state.ready_at) for state in states if state.ready
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

        `kind` says what can be claimed together. Lanes that are less urgent than one of another kind are not offered.
        SATED: the children of its task have enough. NEEDS_SLOT: no slot is free for its jobs; lanes whose turn comes
        later are not offered, because they would keep all slots busy.
        """
        keys = [key for key in self._marks if key.task in tasks and self._closed.get(key.source, 0.0) <= now]
        keys.sort(key=lambda key: (key.priority, (key.source != "") == self._sourced_last.get(key.priority)))
        kinds = {key: kind(key) for key in keys}
        chosen = next((one for one in kinds.values() if one is not SATED), None)
        if chosen is None or chosen is NEEDS_SLOT:
            return []
        bound = next((key.priority for key, one in kinds.items() if one != chosen), 9)
        mine = (key for key, one in kinds.items() if one == chosen and key.priority <= bound)
        offered = list(islice(mine, MAX_OFFERED))
        if offered and not self.asks(offered[0]):
            least = offered[-1].priority
            dry = [key for key in self._dry if key.priority < least and key.task in tasks]
            offered += [key for key in dry if kind(key) not in (SATED, NEEDS_SLOT)]
            offered.sort(key=lambda key: key.priority)
        return [
            Lane(*key, self._marks.get(key, self._dry.get(key)), quota=quota(key), asks=self.asks(key))
            for key in offered
        ]

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
        latest: dict[tuple[str, str, str, int], datetime] = {}
        for job in jobs:
            place = (job.queue, job.source, job.task, job.priority)  # A LaneKey costs more than all the rest here.
            if (known := latest.get(place)) is None or job.ready_at > known:
                latest[place] = job.ready_at
        served = {source for _, source, _, _ in latest if source}
        # The last lane that was reached has more jobs if the claim is full. Those before it were emptied.
        full = (
            next(reversed([key for key in map(lane_key, offered) if key in latest]), None)
            if len(jobs) >= limit
            else None
        )
        # Sources have had their turn even if they admitted nothing: each is asked again soon, and the next may be many.
        self._sourced_last |= {lane.priority: True for lane in offered if lane.source}
        self._sourced_last |= {priority: False for _, source, _, priority in latest if not source}
        for lane in offered:
            key = lane_key(lane)
            if key in latest:
                self._marks.pop(key, None)
                self._dry.pop(key, None)
                self._marks[key] = latest[key] - (timedelta() if key == full else SLACK)
            elif len(jobs) >= limit or (lane.asks and (lane.source in self._closed or lane.source in served)):
                continue
            elif lane.source and not lane.asks and lane.source not in served:
                self._admitting.discard(lane.source)  # It is empty, or its source must be asked by now.
            else:
                self._marks.pop(key, None)
                if not lane.source:
                    self._dry[key] = lane.watermark

    def __bool__(self) -> bool:
        return bool(self._marks)


def lane_key(lane: Lane | LaneState) -> LaneKey:
    return LaneKey(lane.queue, lane.source, lane.task, lane.priority)


def _mark(first: datetime) -> datetime | None:
    """The watermark of a lane. Enqueue refuses times before 2000, so a lane with such a job has none."""
    return first - SLACK if first > _EARLIEST else None
