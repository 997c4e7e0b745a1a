"""statements/lanes.sql: how a worker finds work, and how it goes to sleep."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from outlive.model import LaneState, Sourced, Unsourced
from outlive.statement import Row, Statement
from outlive.store.statements import decoded_by, statement


def _unsourced(rows: list[Row]) -> Unsourced:
    return Unsourced(
        [LaneState(*row) for row in rows if row[2] is not None],
        suspect_waits=any(row[0] is None for row in rows),
        paused=frozenset(row[0] for row in rows if row[0] is not None and row[2] is None),
    )


@decoded_by(_unsourced)
def unsourced_lanes(tasks: Sequence[str], queues: Sequence[str] | None = None) -> Statement[Unsourced]: ...


def sourced_lanes(
    tasks: Sequence[str], queues: Sequence[str] | None = None, *, after: tuple[str, str] = ("", ""), batch: int = 256
) -> Statement[Sourced]:
    """The lanes of at most `batch` sources that follow a queue and source."""

    def decode(rows: list[Row]) -> Sourced:
        last = max(rows, key=lambda row: row[8], default=None)
        return Sourced(
            [LaneState(*row[:7]) for row in rows if row[2] is not None],
            {row[1]: row[7] for row in rows if row[7] > 0},
            (last[0], last[1]) if last is not None and last[8] == batch else None,
        )

    place = {"after_queue": after[0], "after_source": after[1]}
    return statement("sourced_lanes", decode, tasks=tasks, queues=queues, **place, batch=batch)


def sleep(worker: UUID) -> Statement[None]: ...
def wake(worker: UUID) -> Statement[None]: ...
