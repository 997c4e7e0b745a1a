"""records: lists the records that jobs have stored, as a table, JSON or CSV."""

import csv
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, app, command
from outlive.cli.screen import Column, Row, of
from outlive.model import Record

Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="How many rows at most.")]
RECORDS = (
    Column("scope", of("scope")),
    Column("source", of("source")),
    Column("key", of("dedupe_key"), shrink="fold"),
    Column("strength", lambda row: Text(f"{row['strength']:g}"), "right"),
    Column("data", lambda row: Text(screen.plain(_json(row))), shrink="cut"),
)


@command(app)
def records(
    context: CommandContext,
    scope: Annotated[str | None, typer.Option("--scope", help="Only records of this scope.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only records of this source.")] = None,
    limit: Limit = 10_000,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with the data as JSON.")] = False,
) -> None:
    """List the records that jobs have stored, by scope, source and key."""
    statement = store.list_records(scope=scope, source=source, limit=limit)

    def look() -> list[Row]:
        return [msgspec.structs.asdict(record) for record in context.run(statement)]

    def show(rows: Sequence[Row]) -> RenderableType:
        return screen.table(RECORDS, rows) if rows else Text("no record matches", style="dim")

    if csv:
        _print_csv(look())
    else:
        screen.listing(look, show, json=json, watch=False)


def _json(row: Row) -> str:
    return msgspec.json.encode(row["data"]).decode()


def _print_csv(rows: Sequence[Row]) -> None:
    writer = csv.DictWriter(sys.stdout, Record.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
        writer.writerow({**texts, "data": _json(row)})
