"""statements/charts.sql: what the charts of the dashboard show, by minute."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlive.statement import Row
from outlive.store.statements import decoded_by, structs

SAMPLE = 250
"""How many ends are read at both ends of a minute, by the state of their job; those in between are estimated."""
TIMED = 200


class MinuteTimes(msgspec.Struct, frozen=True):
    """How long jobs ran and waited that succeeded in one minute: p50, p95 and p99, in seconds."""

    minute: datetime
    jobs: int
    ran_s: list[float]
    waited_s: list[float] | None


def _by_minute(rows: list[Row]) -> dict[datetime, dict[str, float]]:
    found: dict[datetime, dict[str, float]] = {}
    for minute, outcome, ends in rows:
        counts = found.setdefault(minute, {})
        if outcome is not None:
            counts[outcome] = ends
    return found


@decoded_by(_by_minute)
def ends_by_minute(*, minutes: int, most: int = SAMPLE) -> dict[datetime, dict[str, float]]: ...
@decoded_by(structs(MinuteTimes))
def times_by_minute(*, minutes: int, most: int = TIMED) -> list[MinuteTimes]: ...
