"""statements/schedules.sql: what apps declare, which schedules are due, how they fire, and what operators change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from outlive.model import Declared, DueSchedule, DueSchedules, Fired, Schedule
from outlive.statement import Row, Statement
from outlive.store.statements import Table, any_row, nothing, scalar, statement, table


def declare_schedules(schedules: Iterable[Schedule], app: str) -> Statement[Declared]:
    """Write what an app declares, and withdraw what it declares no more."""

    def decode(rows: list[Row]) -> Declared:
        return Declared(
            **{which: [name for name, outcome in rows if outcome == which] for which in Declared.__struct_fields__}
        )

    declared = [{**msgspec.structs.asdict(one), "args": msgspec.Raw(one.args)} for one in schedules]
    return statement("declare_schedules", decode, schedules=msgspec.json.encode(declared), app=app)


def check_schedules() -> Statement[list[tuple[str, str, bool]]]:
    """Withdraw what no living worker declares any more, and put back what one does: name, app, whether withdrawn."""
    return statement("check_schedules", lambda rows: [(name, app, gone) for name, app, gone in rows])


def orphaned_schedules(worker: UUID) -> Statement[list[str]]:
    """Those that this worker should declare again: no living worker of the app that took them over declares them."""
    return statement("orphaned_schedules", lambda rows: [name for (name,) in rows], worker=worker)


def prune_schedules(*, keep_s: float) -> Statement[None]:
    """Delete schedules that were withdrawn so long ago."""
    return statement("prune_schedules", nothing, keep_s=keep_s)


def due_schedules(*, limit: int = 1000) -> Statement[DueSchedules]:
    """The times are in UTC: in the session's own zone, Python would compare them by their local time."""

    def decode(found: list[Row]) -> DueSchedules:
        rows = [[_in_utc(one) for one in row] for row in found]
        now, exist, upcoming, *_ = rows[0]
        return DueSchedules(now, exist, upcoming, [DueSchedule(*row[3:]) for row in rows if row[3] is not None])

    return statement("due_schedules", decode, limit=limit)


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def fire(seen: DueSchedule, ticks: Sequence[datetime], following: datetime | None) -> Statement[Fired | None]:
    """Make the jobs of ticks. None: another worker fires this schedule, or an operator has changed it."""

    def decode(rows: list[Row]) -> Fired | None:
        return Fired(*rows[0]) if rows else None

    return statement(
        "fire",
        decode,
        schedule=seen.name,
        seen_next=seen.next_at,
        seen_changed=seen.changed_at,
        ticks=ticks,
        following=following,
    )


def note_trouble(seen: DueSchedule, trouble: str) -> Statement[bool]:
    """False: another transaction has locked this schedule, fired it, changed it, or noted the same."""
    return statement(
        "note_trouble",
        any_row,
        schedule=seen.name,
        seen_next=seen.next_at,
        seen_changed=seen.changed_at,
        trouble=trouble,
    )


def list_schedules(*, limit: int = 1000) -> Statement[Table]:
    return statement("list_schedules", table, limit=limit)


def add_schedule(name: str, values: Mapping[str, object]) -> Statement[bool]:
    """False: there is a schedule of this name."""
    return statement("add_schedule", any_row, name=name, values=msgspec.json.encode(values))


def set_schedule(name: str, values: Mapping[str, object]) -> Statement[bool]:
    """False: there is no such schedule."""
    return statement("set_schedule", any_row, name=name, values=msgspec.json.encode(values))


def pause_schedule(name: str) -> Statement[None]:
    return statement("pause_schedule", nothing, name=name)


def resume_schedule(name: str) -> Statement[None]:
    return statement("resume_schedule", nothing, name=name)


def run_schedule(name: str) -> Statement[UUID]:
    return statement("run_schedule", scalar, name=name)


def reset_schedule(name: str) -> Statement[None]:
    return statement("reset_schedule", nothing, name=name)


def remove_schedule(name: str) -> Statement[None]:
    return statement("remove_schedule", nothing, name=name)
