"""Running time: the time in which this process ran. Jobs are judged by it.

A machine may stand still: it is paused, or other processes take all of its processors for seconds. Jobs stand still
with their supervisor, so that time counts neither for their limits nor against other workers.

One loop of the process ticks, many times a second: that of the watch, or `tick_once` in a process without jobs. Between
two ticks at most GAP_S passes here, and the processor time that the process has used: it may be busy, and does run.
"""

from __future__ import annotations

import asyncio
import time

TICK_S = 0.05
GAP_S = 0.25


class RunningTime:
    def __init__(self) -> None:
        self._behind_s = self._used_s = 0.0
        self._ticked_at: float | None = None
        """By the monotonic clock. None: nothing ticks yet, so that all time counts."""

    def now(self) -> float:
        """Seconds, like `time.monotonic`, without those in which this process stood still."""
        moment = time.monotonic()
        if self._ticked_at is not None and moment - self._ticked_at > GAP_S:
            moment = min(moment, self._ticked_at + GAP_S + time.process_time() - self._used_s)
        return moment - self._behind_s

    def tick(self) -> float:
        """Count the time since the last tick, and return `now`."""
        moment, used_s = time.monotonic(), time.process_time()
        if self._ticked_at is not None:
            ran_s = GAP_S + used_s - self._used_s
            self._behind_s += max(0.0, moment - self._ticked_at - ran_s)
        self._ticked_at, self._used_s = moment, used_s
        return moment - self._behind_s

    def behind_s(self) -> float:
        """How long this process has stood still since it started to tick."""
        return time.monotonic() - self.now()


_clock = RunningTime()  # There is one for a process, as with every other clock.
now, tick, behind_s = _clock.now, _clock.tick, _clock.behind_s


async def tick_once() -> None:
    await asyncio.sleep(TICK_S)
    tick()
