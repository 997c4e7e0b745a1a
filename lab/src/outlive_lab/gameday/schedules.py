"""The rules of schedules that fire every second and make up for all that they missed: each second has one job."""

from __future__ import annotations

from collections import Counter

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.options import Bounds


def broken(facts: Facts, bounds: Bounds) -> Broken:
    history = facts.history
    for name in sorted(facts.found.schedules):
        seconds = Counter(round(tick.at_s) for tick in facts.found.ticks if tick.schedule == name)
        for second, count in seconds.items():
            if count > 1:
                yield "fired twice", f"schedule {name}", f"it made {count} jobs for the second {second}"
        for second in range(min(seconds, default=0), max(seconds, default=0)):
            if second not in seconds:
                yield "not fired", f"schedule {name}", f"it made no job for the second {second}"
        # The last ticks may have been due while the database was away or no worker lived.
        silent_s = history.scheduled_s - max(seconds, default=history.began_s)
        if silent_s > bounds.any_death_s:
            yield "not fired", f"schedule {name}", f"it made no job in its last {silent_s:.0f} s"
