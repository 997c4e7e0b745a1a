"""What all commands share: their common options, their way to the database, and how they end when it goes wrong.

A command is a function that takes a `CommandContext` first and then its own options; `command` adds the common ones.
"""

import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import typer

import outlive
from outlive import config, db, errors, logs, migrate
from outlive.cli import screen
from outlive.states import State

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Watch = Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")]
StateFilter = Annotated[State | None, typer.Option("--state", help="Only jobs of this state.")]
TaskFilter = Annotated[str | None, typer.Option("--task", help="Only jobs of this task.")]
QueueFilter = Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.")]

_DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", help="Default: OUTLIVE_DATABASE_URL, or the embedded server.", rich_help_panel="Common"
    ),
]
_ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file instead of the nearest outlive.toml.", rich_help_panel="Common"),
]
_Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.", rich_help_panel="Common")]
_COMMON = [
    inspect.Parameter("database_url", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_DatabaseUrl),
    inspect.Parameter("config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ConfigFile),
    inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Debug),
]
_EXIT_CODES: dict[type[Exception], int] = {
    errors.ConfigError: 2,
    errors.BadArguments: 2,
    errors.TaskNotFound: 2,
    errors.AppNotFound: 3,
    errors.DatabaseUnreachable: 4,
    errors.EmbeddedError: 4,
    errors.SchemaMismatch: 5,
}


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outlive {outlive.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Jobs outlive their workers: a PostgreSQL job system for work that kills processes."""


class CommandContext:
    """One command's way to the database: its configuration, and a connection once it needs one."""

    def __init__(self, database_url: str | None, config_file: Path | None) -> None:
        self.config_file, self.database_url = config_file, database_url
        self.config = self.reconfigured()
        self.chosen = database_url is not None or config_file is not None
        logs.configure(cast("logs.Format", self.config.log_format), level=logging.WARNING)

    def reconfigured(self, **flags: object) -> config.Config:
        """The configuration with the flags of one command."""
        return config.load(self.config_file, flags={"database_url": self.database_url, **flags})

    def config_of(self, app_url: str | None, **flags: object) -> config.Config:
        """The configuration for an app that may name a database of its own; --database-url overrules it."""
        settings = self.reconfigured(**flags)
        return settings if self.database_url is not None else migrate.agreed(settings, app_url)

    @functools.cached_property
    def connection(self) -> db.Connection:
        """To a database with the right schema."""
        with db.translated_errors():
            return db.connect(migrate.ready(self.config))

    @functools.cached_property
    def bare_connection(self) -> db.Connection:
        """To the database as it is, for those who look at its schema or bring it up to date."""
        with db.translated_errors():
            return db.connect(migrate.address(self.config))

    def run(self, statement: db.Statement[T]) -> T:
        connection = self.connection
        with db.translated_errors():
            return db.run(connection, statement)

    def close(self) -> None:
        for name in ("connection", "bare_connection"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()


def command(
    to: typer.Typer, name: str | None = None, *, how: Literal["command", "callback"] = "command"
) -> Callable[[F], F]:
    """Register a command (or what a group does without one) under its function's name."""

    def register(function: F) -> F:
        signature = inspect.signature(function)
        own = list(signature.parameters.values())[1:]

        @functools.wraps(function)
        def run(database_url: str | None, config_file: Path | None, debug: bool, **options: Any) -> None:
            with reported(debug=debug):
                context = CommandContext(database_url, config_file)
                try:
                    function(context, **options)
                finally:
                    context.close()

        run.__signature__ = signature.replace(parameters=[*own, *_COMMON])  # type: ignore[attr-defined]
        if how == "command":
            to.command(name)(run)
        else:
            to.callback(invoke_without_command=True)(run)
        return function

    return register


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Every error becomes one line on stderr and an exit code; a traceback is shown only to who asks for it."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has seen enough. What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except errors.OutliveError as error:
        _complain(str(error), debug=debug, below=error.traceback if isinstance(error, errors.AppNotFound) else "")
        codes = (code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
        raise typer.Exit(next(codes, 1)) from None
    except Exception as error:
        _complain(f"this is a bug in outlive: {type(error).__name__}: {error}; --debug shows where", debug=debug)
        raise typer.Exit(1) from None


def _complain(message: str, *, debug: bool, below: str = "") -> None:
    if not logs.flush():
        return  # A stderr that takes no more lines would hold up the end for ever.
    if debug:
        print(screen.plain(logs.redacted(traceback.format_exc())), file=sys.stderr)
    screen.complain(message)
    if below:
        print(screen.plain(logs.redacted(below)), file=sys.stderr)
