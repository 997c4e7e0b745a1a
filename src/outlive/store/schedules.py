"""statements/schedules.sql: what apps declare, which schedules are due, how they fire, and what operators change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from outlive.model import Declared, DueSchedule, DueSchedules, Fired, Schedule
from outlive.statement import Row, Statement
from outlive.store.statements import Table, decoded_by, statement


def declare_schedules(schedules: Iterable[Schedule], app: str) -> Statement[Declared]:
    def decode(rows: list[Row]) -> Declared:
        kinds = Declared.__struct_fields__
        return Declared(**{kind: [name for name, outcome in rows if outcome == kind] for kind in kinds})

    declared = [{**msgspec.structs.asdict(one), "args": msgspec.Raw(one.args)} for one in schedules]
    return statement("declare_schedules", decode, schedules=msgspec.json.encode(declared), app=app)


def _due(found: list[Row]) -> DueSchedules:
    """The times are in UTC: in the session's own zone, Python would compare them by their local time."""
    rows: list[list[Any]] = [
        [one.astimezone(UTC) if isinstance(one, datetime) else one for one in row] for row in found
    ]
    now, upcoming, *_ = rows[0]
    return DueSchedules(now, upcoming, [DueSchedule(*row[2:]) for row in rows if row[2] is not None])


def check_schedules() -> Statement[list[tuple[str, str, bool]]]:
    """Withdraw what no living worker declares any more, and put back what one does: name, app, whether withdrawn."""


def orphaned_schedules(worker: UUID) -> Statement[list[str]]: ...
def prune_schedules(*, keep_s: float) -> Statement[None]: ...
@decoded_by(_due)
def due_schedules(*, limit: int = 1000) -> Statement[DueSchedules]: ...
def list_schedules(*, limit: int = 1000) -> Statement[Table]: ...
def schedule_infos(names: Sequence[str] | None = None) -> Statement[list[Row]]: ...
def add_schedule(name: str, values: Mapping[str, object]) -> Statement[bool]: ...
def set_schedule(name: str, values: Mapping[str, object]) -> Statement[bool]: ...
def pause_schedule(name: str) -> Statement[None]: ...
def resume_schedule(name: str) -> Statement[None]: ...
def run_schedule(name: str) -> Statement[UUID]: ...
def reset_schedule(name: str) -> Statement[None]: ...
def remove_schedule(name: str) -> Statement[None]: ...


def _of(seen: DueSchedule) -> dict[str, object]:
    return {"schedule": seen.name, "seen_next": seen.next_at, "seen_changed": seen.changed_at}


def fire(seen: DueSchedule, ticks: Sequence[datetime], following: datetime | None) -> Statement[Fired | None]:
    """Make the jobs of ticks. None: another worker fires this schedule, or an operator has changed it."""

    def decode(rows: list[Row]) -> Fired | None:
        return Fired(*rows[0]) if rows else None

    return statement("fire", decode, **_of(seen), ticks=ticks, following=following)


def note_trouble(seen: DueSchedule, trouble: str) -> Statement[bool]:
    return statement("note_trouble", bool, **_of(seen), trouble=trouble)
