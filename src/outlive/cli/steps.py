"""steps: lists what a durable job has kept."""

from __future__ import annotations

from collections.abc import Sequence

from outlive import store, wire
from outlive.cli.command import CommandContext, JobId, app, command
from outlive.cli.job_filter import found_id
from outlive.cli.screen import Column, Listing, Row, count_of, of, text, time_of
from outlive.humanize import duration, one_line

MAX_VALUE_CHARS = 200
STEPS = (
    Column("step", of("name")),
    Column("value", lambda row: text(_short(row["value"]))),
    Column("attempt", count_of("attempt"), "right"),
    Column("took", lambda row: text("" if row["took_s"] is None else duration(row["took_s"])), "right"),
    Column("kept", time_of("at"), wide=True),
)


@command(app)
def steps(context: CommandContext, id: JobId) -> Listing[Sequence[Row]]:
    """List the steps that a job has kept. Later attempts do not take them again.

    Example: outlive steps ID
    """
    job = found_id(context, "job", id)
    return context.rows(store.steps_of(job), STEPS, "the job has kept no step", _as_json)


def _short(value: bytes | None) -> str:
    words = one_line("" if value is None else value.decode(errors="replace"))
    return words if len(words) <= MAX_VALUE_CHARS else f"{words[:MAX_VALUE_CHARS]}…"


def _as_json(rows: Sequence[Row]) -> object:
    return [{**row, "value": row["value"] and wire.readable(row["value"])} for row in rows]
