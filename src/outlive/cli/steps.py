"""steps, rerun, supply, send: list what a durable job has kept, begin again at a step, give a value in place of one,
and send a signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from outlive import store, wire
from outlive.cli import screen
from outlive.cli.command import CommandContext, JobId, app, command, given, operator
from outlive.cli.job_filter import found_id
from outlive.cli.screen import Column, Listing, Row, count_of, of, text, time_of
from outlive.humanize import duration, one_line
from outlive.operations import step_verbs

MAX_VALUE_CHARS = 200
STEPS = (
    Column("step", of("name")),
    Column("value", lambda row: text(_short(row["value"])), shrink="cut"),
    Column("attempt", count_of("attempt"), "right"),
    Column("supplied by", of("supplied_by"), shrink="fold"),
    Column("took", lambda row: text("" if row["took_s"] is None else duration(row["took_s"])), "right"),
    Column("kept", time_of("at"), wide=True),
)


@command(app, example="steps ID")
def steps(context: CommandContext, id: JobId) -> Listing[Sequence[Row]]:
    """List the steps that a job has kept. Later attempts do not take them again."""
    job = found_id(context, "job", id)
    return context.rows(store.steps_of(job), STEPS, "the job has kept no step", _as_json)


@command(app, example="rerun ID --from charge")
def rerun(
    context: CommandContext,
    id: JobId,
    step: Annotated[str, typer.Option("--from", metavar="NAME", help="The step, as `outlive steps` names it.")],
) -> None:
    """Let a job begin again at a step: this one, those below it and all that were kept after it are dropped.

    Counters become zero. It takes a job that has ended, is in quarantine or waits for a retry.
    """
    screen.say(context.do_at_once(step_verbs.rerun(found_id(context, "job", id), step, operator())))


@command(app, example="""supply ID parse:page-17 '{"words": 0}'""")
def supply(
    context: CommandContext,
    id: JobId,
    step: Annotated[str, typer.Argument(metavar="NAME", help="The step, as `outlive steps` and errors name it.")],
    value: Annotated[
        str, typer.Argument(metavar="JSON", help="What the step is to have returned; - reads it from standard input.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the value that is kept.")] = False,
) -> None:
    """Keep a value in place of what a step returns, for example of one that kills. The step is not taken then."""
    job = found_id(context, "job", id)
    screen.say(context.do_at_once(step_verbs.supply(job, step, given(value), operator(), replacing=replace)))


@command(app, example="""send ID packed '{"parcels": [1, 2]}'""")
def send(
    context: CommandContext,
    id: JobId,
    signal: Annotated[str, typer.Argument(metavar="SIGNAL", help="The name that the job receives it by.")],
    value: Annotated[
        str, typer.Argument(metavar="JSON", help="What the job receives; - reads it from standard input.")
    ] = "null",
) -> None:
    """Send a signal to a job. It goes on if it waits for that; otherwise it gets it when it asks for it."""
    screen.say(context.do_at_once(step_verbs.send(found_id(context, "job", id), signal, given(value), operator())))


def _short(value: bytes | None) -> str:
    words = one_line("" if value is None else value.decode(errors="replace"))
    return words if len(words) <= MAX_VALUE_CHARS else f"{words[:MAX_VALUE_CHARS]}…"


def _as_json(rows: Sequence[Row]) -> object:
    return [{**row, "value": row["value"] and wire.readable(row["value"])} for row in rows]
