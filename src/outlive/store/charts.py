"""statements/charts.sql: what the charts of the dashboard show, by steps of time."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlive.statement import Row, Statement
from outlive.store.statements import decoded_by

SAMPLE = 250
"""How many ends are read at both ends of a step, by the state of their job; those in between are estimated."""
TIMED = 200


class StepTimes(msgspec.Struct, frozen=True):
    """How long jobs ran and waited that succeeded in one step of time: p50, p95 and p99, in seconds."""

    at: datetime
    jobs: int
    ran_s: list[float]
    waited_s: list[float] | None


def _by_step(rows: list[Row]) -> dict[datetime, dict[str, float]]:
    found: dict[datetime, dict[str, float]] = {}
    for at, outcome, ends in rows:
        counts = found.setdefault(at, {})
        if outcome is not None:
            counts[outcome] = ends
    return found


@decoded_by(_by_step)
def ends_by_step(
    *, steps: int, step_s: int, past: int = 0, most: int = SAMPLE
) -> Statement[dict[datetime, dict[str, float]]]: ...
def times_by_step(*, steps: int, step_s: int, past: int = 0, most: int = TIMED) -> Statement[list[StepTimes]]: ...
