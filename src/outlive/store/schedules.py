"""statements/schedules.sql: what apps declare, which schedules are due, how they fire, and what operators change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from outlive.model import Declared, DueSchedule, DueSchedules, Fired, Schedule
from outlive.statement import Row, Statement
from outlive.store.statements import (
    Table,
    any_row,
    as_they_are,
    decoded_by,
    first_column,
    nothing,
    scalar,
    statement,
    table,
)


def declare_schedules(schedules: Iterable[Schedule], app: str) -> Statement[Declared]:
    def decode(rows: list[Row]) -> Declared:
        return Declared(
            **{which: [name for name, outcome in rows if outcome == which] for which in Declared.__struct_fields__}
        )

    declared = [{**msgspec.structs.asdict(one), "args": msgspec.Raw(one.args)} for one in schedules]
    return statement("declare_schedules", decode, schedules=msgspec.json.encode(declared), app=app)


def _due(found: list[Row]) -> DueSchedules:
    """The times are in UTC: in the session's own zone, Python would compare them by their local time."""
    rows: list[list[Any]] = [
        [one.astimezone(UTC) if isinstance(one, datetime) else one for one in row] for row in found
    ]
    now, upcoming, *_ = rows[0]
    return DueSchedules(now, upcoming, [DueSchedule(*row[2:]) for row in rows if row[2] is not None])


@decoded_by(as_they_are)
def check_schedules() -> Statement[list[tuple[str, str, bool]]]:
    """Withdraw what no living worker declares any more, and put back what one does: name, app, whether withdrawn."""


@decoded_by(first_column)
def orphaned_schedules(worker: UUID) -> Statement[list[str]]:
    """Those that this worker should declare again: no living worker of the app that took them over declares them."""


@decoded_by(nothing)
def prune_schedules(*, keep_s: float) -> Statement[None]:
    """Delete schedules that were withdrawn so long ago."""


@decoded_by(_due)
def due_schedules(*, limit: int = 1000) -> Statement[DueSchedules]:
    """The times are in UTC: in the session's own zone, Python would compare them by their local time."""


@decoded_by(table)
def list_schedules(*, limit: int = 1000) -> Statement[Table]: ...
@decoded_by(nothing)
def pause_schedule(name: str) -> Statement[None]: ...
@decoded_by(nothing)
def resume_schedule(name: str) -> Statement[None]: ...
@decoded_by(scalar)
def run_schedule(name: str) -> Statement[UUID]: ...
@decoded_by(nothing)
def reset_schedule(name: str) -> Statement[None]: ...
@decoded_by(nothing)
def remove_schedule(name: str) -> Statement[None]: ...


def fire(seen: DueSchedule, ticks: Sequence[datetime], following: datetime | None) -> Statement[Fired | None]:
    """Make the jobs of ticks. None: another worker fires this schedule, or an operator has changed it."""
    what = {"schedule": seen.name, "seen_next": seen.next_at, "seen_changed": seen.changed_at}
    return statement("fire", lambda rows: Fired(*rows[0]) if rows else None, **what, ticks=ticks, following=following)


def note_trouble(seen: DueSchedule, trouble: str) -> Statement[bool]:
    """False: another transaction has locked this schedule, fired it, changed it, or noted the same."""
    what = {"schedule": seen.name, "seen_next": seen.next_at, "seen_changed": seen.changed_at}
    return statement("note_trouble", any_row, **what, trouble=trouble)


def add_schedule(name: str, values: Mapping[str, object]) -> Statement[bool]:
    """False: there is a schedule of this name."""
    return statement("add_schedule", any_row, name=name, values=msgspec.json.encode(values))


def set_schedule(name: str, values: Mapping[str, object]) -> Statement[bool]:
    """False: there is no such schedule."""
    return statement("set_schedule", any_row, name=name, values=msgspec.json.encode(values))
