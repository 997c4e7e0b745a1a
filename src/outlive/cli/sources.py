"""sources: lists the sources with their limits and breakers; sets, pauses and resumes them."""

from typing import Annotated

import typer
from rich.text import Text

from outlive import program, store
from outlive.cli import completion, screen
from outlive.cli.command import LOOK, CommandContext, Json, ManyRows, Watch, app, command
from outlive.cli.screen import Column, Row, count_of, of, table_or, time_of
from outlive.errors import ConfigError
from outlive.operations.controls import SETTABLE, limit_of_source

Name = Annotated[str, typer.Argument(help="The source.", autocompletion=completion.sources)]

sources_app = typer.Typer()
app.add_typer(sources_app, name="sources", rich_help_panel=LOOK)


def _breaker(row: Row) -> Text:
    if not row["enabled"]:
        return Text("paused by an operator", style="yellow")
    return Text(row["breaker"], style=screen.BREAKER_STYLES[row["breaker"]])


def _rate(row: Row) -> Text:
    rate = row["rate_limit_per_minute"]
    return Text("no limit", style="dim") if rate is None else Text(f"{rate:g}/min")


SOURCES = (
    Column("source", of("name"), shrink="fold"),
    Column("breaker", _breaker),
    Column("rate", _rate, "right"),
    Column("tokens", lambda row: Text("" if row["tokens"] is None else f"{row['tokens']} of {row['burst']}"), "right"),
    Column("failures", count_of("failure_streak", "red"), "right"),
    Column("paused until", time_of("paused_until")),
    Column("last success", time_of("last_success_at"), luxury=True),
    Column("last failure", time_of("last_failure_at"), luxury=True),
)


@command(sources_app, callback=True)
def sources(
    context: CommandContext, group: typer.Context, limit: ManyRows = 1000, json: Json = False, watch: Watch = False
) -> None:
    """List the sources; set their limits, pause and resume them.

    Example: outlive sources --watch
    """
    if not context.has_subcommand(group):
        show = table_or("no app has declared a source", SOURCES)
        screen.listing(lambda: context.run(store.list_sources(limit=limit)), show, json=json, watch=watch)


@command(sources_app, "set")
def set_(
    context: CommandContext,
    name: Name,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help=f"One of {', '.join(SETTABLE)}.")],
) -> None:
    """Override the app's limits of a source for all workers, at once. KEY= removes the override.

    Example: outlive sources set shop rate_limit_per_minute=30
    """
    limits = dict(_parsed(value) for value in values)
    _expect(context.audited(store.set_source(name, limits), "set source", {"source": name, **limits}), name)
    words = {key: "as the app declares it" if value is None else f"{value:g}" for key, value in limits.items()}
    screen.say(Text(f"{name}: " + ", ".join(f"{key} is {value}" for key, value in words.items())))


@command(sources_app)
def pause(context: CommandContext, name: Name) -> None:
    """Stop claiming the jobs of a source. Running jobs continue.

    Example: outlive sources pause shop
    """
    _expect(context.control("pause_source", name), name)


@command(sources_app)
def resume(context: CommandContext, name: Name) -> None:
    """Claim the jobs of a source again, and close its breaker.

    Example: outlive sources resume shop
    """
    _expect(context.control("resume_source", name), name)


def _parsed(word: str) -> tuple[str, float | None]:
    key, equals, value = word.partition("=")
    if key not in SETTABLE or not equals:
        raise ConfigError(f"{word!r} is not KEY=VALUE: use one of the keys {', '.join(SETTABLE)}")
    return key, limit_of_source(key, value)


def _expect(found: bool, name: str) -> None:
    if not found:
        raise ConfigError(f"there is no source {name}: `{program.command('sources')}` lists the sources")
