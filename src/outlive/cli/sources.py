"""sources: lists the sources with their limits and breakers; sets, pauses, resumes and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from outlive import program, store
from outlive.cli import job_filter, screen
from outlive.cli.command import CommandContext, ManyRows, command, group
from outlive.cli.screen import Column, Drawn, Listing, Row, Text, count_of, of, text, time_of
from outlive.errors import ConfigError, OutliveError
from outlive.humanize import figure
from outlive.operations.controls import SETTABLE, limit_of_source

Name = Annotated[str, typer.Argument(help="The source.", autocompletion=job_filter.SOURCES)]


def _breaker(row: Row) -> Text:
    paused = ("paused by an operator", "yellow")
    return text((row["breaker"], screen.BREAKER_STYLES[row["breaker"]]) if row["enabled"] else paused)


def _rate(row: Row) -> Text:
    rate = row["rate_limit_per_minute"]
    return text(("no limit", "dim") if rate is None else f"{figure(rate)}/min")


SOURCES = (
    Column("source", of("name"), shrink="fold"),
    Column("breaker", _breaker),
    Column("rate", _rate, "right"),
    Column("tokens", lambda row: text("" if row["tokens"] is None else f"{row['tokens']} of {row['burst']}"), "right"),
    Column("failures", count_of("failure_streak", "red"), "right"),
    Column("paused until", time_of("paused_until")),
    Column("last success", time_of("last_success_at"), wide=True),
    Column("last failure", time_of("last_failure_at"), wide=True),
)
sources_app = group("sources")


@command(sources_app, callback=True, example="sources --watch")
def sources(
    context: CommandContext,
    name: Annotated[str, typer.Option(help="Only those whose name begins with this.")] = "",
    limit: ManyRows = 1000,
) -> Listing[Sequence[Row]]:
    """List the sources, those in trouble first; set their limits, pause, resume and remove them."""

    def show(rows: Sequence[Row]) -> Drawn:
        if not rows:
            return text(f"no source has a name that begins with {name}" if name else "no app has declared a source")
        more = f"these are the first {limit:,}, and there may be more: --limit" if len(rows) == limit else ""
        return screen.stacked(screen.table(SOURCES, rows), *([text((more, "dim"))] if more else []))

    return Listing(lambda: context.run(store.list_sources(begins=name, limit=limit)), show)


@command(sources_app, "set", example="sources set shop rate_limit_per_minute=30")
def set_(
    context: CommandContext,
    name: Name,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help=f"One of {', '.join(SETTABLE)}.")],
) -> None:
    """Override the app's limits of a source for all workers, at once. KEY= removes the override."""
    limits: dict[str, float | None] = {}
    for word in values:
        key, equals, value = word.partition("=")
        if key not in SETTABLE or not equals:
            raise ConfigError(f"{word!r} is not KEY=VALUE: use one of the keys {', '.join(SETTABLE)}")
        limits[key] = limit_of_source(key, value)
    _expect(context.audited(store.set_source(name, limits), "set source", {"source": name, **limits}), name)
    words = {key: "as the app declares it" if value is None else figure(value) for key, value in limits.items()}
    screen.say(f"{name}: " + ", ".join(f"{key} is {value}" for key, value in words.items()))


@command(sources_app, example="sources pause shop")
def pause(context: CommandContext, name: Name) -> None:
    """Stop claiming the jobs of a source. Running jobs continue."""
    _expect(context.control("pause_source", name), name)


@command(sources_app, example="sources resume shop")
def resume(context: CommandContext, name: Name) -> None:
    """Claim the jobs of a source again, and close its breaker."""
    _expect(context.control("resume_source", name), name)


@command(sources_app, example="sources remove shop")
def remove(context: CommandContext, name: Name) -> None:
    """Forget a source that no unfinished job has. It comes back if a worker declares it or a job names it."""
    if not context.control("remove_source", name):
        jobs = program.command(f"jobs --source {name}")
        raise OutliveError(f"the source {name} is not removed: it does not exist, or unfinished jobs have it; `{jobs}`")


def _expect(found: bool, name: str) -> None:
    if not found:
        raise ConfigError(f"there is no source {name}: `{program.command('sources')}` lists the sources")
