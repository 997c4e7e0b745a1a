"""audit: lists what operators have done to jobs, queues, sources, schedules, batches and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from outlive import store
from outlive.cli import screen
from outlive.cli.command import LOOK, CommandContext, Json, ManyRows, Watch, app, command
from outlive.cli.screen import Column, Row, of, styled, table_or, time_of
from outlive.operations.selection import told

if TYPE_CHECKING:
    from rich.text import Text


def _what(row: Row) -> Text:
    """The ids, the filter or the name, in a few words."""
    parts = (" ".join(told(key, value)) for key, value in msgspec.json.decode(row["what"]).items())
    return styled(screen.plain("; ".join(parts)))


def _shape(rows: Sequence[Row]) -> object:
    return [{**row, "what": msgspec.Raw(row["what"])} for row in rows]


AUDIT = (
    Column("when", time_of("at")),
    Column("who", of("who"), shrink="fold"),
    Column("action", of("action")),
    Column("jobs", lambda row: styled(f"{row['jobs']:,}" if row["jobs"] else ""), "right"),
    Column("what", _what, shrink="fold"),
)


@command(app, panel=LOOK)
def audit(context: CommandContext, limit: ManyRows = 50, json: Json = False, watch: Watch = False) -> None:
    """List what operators have done, the latest first: who, when, and to how many jobs. Kept for 90 days.

    Example: outlive audit --limit 10
    """
    show = table_or("no operator has changed anything yet", AUDIT)
    screen.listing(lambda: context.run(store.list_audit(limit=limit)), show, json=json, watch=watch, shape=_shape)
