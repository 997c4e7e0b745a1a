"""What all commands share: the options --database-url, --config and --debug, a connection, and error reports.

A command is a function whose first parameter is a `CommandContext`. `command` registers it and adds the shared options;
to one that returns a `Listing` also --json and --watch, and then prints the listing.
"""

import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
import typer

import outlive
from outlive import config, db, errors, logs, migrate, operations, program
from outlive.cli import PANELS, screen
from outlive.cli.screen import Column, Listing, Row
from outlive.humanize import plain
from outlive.model import new_job_id
from outlive.operations import controls, selection

T = TypeVar("T")
LOCK_WAIT_S = 5.0
"""How long a command waits for a lock, before it says so."""
F = TypeVar("F", bound=Callable[..., object])

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")

JobId = Annotated[str, typer.Argument(help="The job; the first digits of its id are enough.")]
LogFormat = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="text, or json: an object for each line. Default: log_format.")
]
Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, e.g. shop.tasks:app.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh every second, until q or Ctrl-C.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
ManyRows = Annotated[int, typer.Option(min=1, max=1_000_000, help="How many rows at most.")]


def _parameter(name: str, annotation: Any, *, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _common(name: str, kind: Any, flag: str, help: str, *, default: object = None) -> inspect.Parameter:
    return _parameter(name, Annotated[kind, typer.Option(flag, help=help, rich_help_panel="Common")], default=default)


_GROUP = _parameter("group", typer.Context)
_LISTING = (_parameter("json", Json, default=False), _parameter("watch", Watch, default=False))
_COMMON = (
    _common("config_file", Path | None, "--config", "Read this TOML file instead of the nearest outlive.toml."),
    _common("debug", bool, "--debug", "Print the traceback of an error.", default=False),
)
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
    """What one command works with: the configuration, and a connection that is opened when it is first used."""

    def __init__(self, database_url: str | None, config_file: Path | None) -> None:
        self.config_file, self.database_url = config_file, database_url
        warnings: list[str] = []
        self.config = config.load(config_file, flags={"database_url": database_url}, warn=warnings.append)
        self.log_from("warning")
        for warning in warnings:
            logging.getLogger("outlive").warning(warning)

    def log_from(self, level: str, format: str | None = None) -> None:
        logs.configure(cast("logs.Format", format or self.config.log_format), level=level)

    def config_of(self, app: Mapping[str, object], **flags: object) -> config.Config:
        """The configuration with the settings of an app, and with the flags of one command.

        It is read again: the app may have changed the environment when it was imported.
        """
        found = config.load(self.config_file, app=app, flags={"database_url": self.database_url, **flags})
        migrate.expect_agreement(found, app)
        return found

    @functools.cached_property
    def connection(self) -> db.Connection:
        """A connection to the database, whatever schema it has."""
        with db.translated_errors():
            return db.connect(self.address())

    def address(self) -> str:
        """The address of the database. If it is the embedded server's, a line says so the first time."""
        if self.config.database_url:
            return migrate.address(self.config)
        from outlive import embedded  # Not at the top: few commands start a server.

        directory = self.config.home or embedded.default_directory()
        url = embedded.ensure(directory)
        if embedded.first_notice(directory):
            print(f"outlive: {embedded.notice(directory)}", file=sys.stderr, flush=True)
        return url

    @functools.cached_property
    def _ready_connection(self) -> db.Connection:
        with db.translated_errors():
            migrate.make_ready(self.connection, self.config)
        self.limit_lock_waits(LOCK_WAIT_S)
        return self.connection

    def limit_lock_waits(self, at_most_s: float) -> None:
        """Let no further statement wait for a lock for longer. A pooler would give others this setting."""
        if not self.connection.pooled:
            self.connection.execute(f"set lock_timeout = {round(at_most_s * 1000)}".encode())

    @property
    def place(self) -> str:
        """The database that this command looks at, in words."""
        if self.config.database_url is None:
            from outlive import embedded  # Not at the top: few commands need it.

            return f"the embedded server in {self.config.home or embedded.default_directory()}"
        info = self.connection.info
        return f"{info.dbname} on {info.host}, port {info.port}"

    def run(self, statement: db.Statement[T]) -> T:
        """Run a statement; the first one checks the schema."""
        connection = self._ready_connection
        with db.translated_errors():
            return db.run(connection, statement)

    def do(self, steps: operations.Steps[T]) -> T:
        """Do an operation of several statements."""
        return operations.run(steps, self.run)

    def rows(
        self,
        statement: db.Statement[list[dict[str, Any]]],
        columns: Sequence[Column],
        empty: str,
        shape: Callable[[Sequence[Row]], object] = lambda rows: rows,
    ) -> Listing[Sequence[Row]]:
        """Shows what a statement finds as a table, or this sentence if it finds nothing."""
        return Listing(lambda: self.run(statement), lambda rows: screen.table(columns, rows) if rows else empty, shape)

    def audited(self, statement: db.Statement[T], action: str, what: object, *, jobs: int = 0) -> T:
        """Run an operator's statement, and write it to the audit in the same transaction, unless it did nothing."""
        return self.do_at_once(controls.audited(statement, operator(), action, what, jobs=jobs))

    def do_at_once(self, steps: operations.Steps[T]) -> T:
        """Do an operation in one transaction."""
        connection = self._ready_connection
        with db.translated_errors(), connection.transaction():
            return operations.run(steps, lambda one: db.run(connection, one))

    def control(self, action: str, name: str, values: Mapping[str, Any] | None = None) -> Any:
        """Do something to a queue, a source, a worker or a schedule, and say so, unless nothing was done."""
        control = controls.CONTROLS[action]
        statement = control.make(name) if values is None else control.make(name, values)
        done = self.audited(statement, control.action, {control.noun: name, **(values or {})})
        if done is None or done:
            resume = program.command(f"{control.noun}s resume {name}")
            new = (
                ": " + "; ".join("{} {}".format(*selection.in_words(*one)) for one in values.items()) if values else ""
            )
            screen.say(control.result(name) + new + (f"; `{resume}` resumes it" if control.done == "paused" else ""))
        return done

    def close(self) -> None:
        if "connection" in self.__dict__:
            self.connection.close()


def operator() -> operations.By:
    """Who runs this command, for the audit."""
    import getpass  # Not at the top: most commands change nothing.
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # Its id has no name here.
        user = f"uid {os.getuid()}"
    return operations.By(f"{user}@{socket.gethostname()} (cli)", new_job_id())


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, and end the command if the answer is no. Without a terminal, --yes is the answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        unchanged = "this is not a terminal, so nothing was changed; give --yes if you mean it"
        raise errors.ConfigError(f"{question}: {unchanged}")
    if not typer.confirm(f"{plain(question)}?", err=True):
        raise errors.OutliveError("nothing was changed")


def given(text: str) -> str:
    """A value on the command line; that of `-` is on standard input, because Linux takes 128 KiB in one argument."""
    if text != "-":
        return text
    from outlive.protocol import MAX_FRAME_BYTES  # Not at the top: few commands read a value.

    found = sys.stdin.buffer.read(MAX_FRAME_BYTES + 1)
    if len(found) > MAX_FRAME_BYTES:
        raise errors.BadArguments(f"standard input has more than {MAX_FRAME_BYTES:,} bytes")
    return found.decode(errors="surrogateescape")


def json_arguments(text: str) -> bytes:
    """The arguments of a job: by name, or in order."""
    text = given(text)
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise errors.BadArguments(f"the arguments are not JSON ({error}); quote them like '{{\"a\": 1}}'") from None
    if not isinstance(value, dict | list):
        raise errors.BadArguments(f"the arguments must be a JSON object or array, not {text[:50]}")
    return text.encode()


def group(name: str, to: typer.Typer = app, **options: Any) -> typer.Typer:
    """A command that has subcommands."""
    made = typer.Typer(**options)
    to.add_typer(made, name=name, rich_help_panel=_panel(name))
    return made


def command(to: typer.Typer, name: str | None = None, *, example: str = "", callback: bool = False) -> Callable[[F], F]:
    """Register a command under its function's name, or the callback that a group runs without a subcommand."""

    def register(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        _, *own = signature.parameters.values()
        filter = signature.parameters.get("filter")
        filtering = [*inspect.signature(filter.annotation, eval_str=True).parameters.values()] if filter else []
        own = [*filtering, *(one for one in own if one is not filter)]
        lists = getattr(signature.return_annotation, "__origin__", None) is Listing

        @functools.wraps(function)
        def run(database_url: str | None, config_file: Path | None, debug: bool, **options: Any) -> None:
            if filter:
                options["filter"] = filter.annotation(**{one.name: options.pop(one.name) for one in filtering})
            printing = {name: options.pop(name) for name in ("json", "watch")} if lists else {}
            group: typer.Context | None = options.pop("group", None)
            with reported(debug=debug):
                context = CommandContext(database_url, config_file)
                if group and group.invoked_subcommand:
                    if database_url is not None or config_file is not None:
                        raise errors.ConfigError(f"put the options after {group.invoked_subcommand}, not before it")
                    return
                try:
                    listing = function(context, **options)
                    if isinstance(listing, Listing):
                        listing.print(**printing)
                finally:
                    context.close()

        default = "OUTLIVE_DATABASE_URL" + (", the app's own" if any(one.annotation == Target for one in own) else "")
        help = f"Default: {default}, or the embedded server."
        url = _common("database_url", str | None, "--database-url", help)
        mine = [*own, *(_LISTING if lists else ()), *([_GROUP] if callback else []), url, *_COMMON]
        run.__signature__ = signature.replace(parameters=mine)  # type: ignore[attr-defined]
        if example:
            run.__doc__ = f"{inspect.getdoc(function)}\n\nExample: outlive {example}"
        called = name or function.__name__
        panel = _panel(called) if to is app else None
        (to.callback(invoke_without_command=True) if callback else to.command(called, rich_help_panel=panel))(run)
        return function

    return register


def _panel(name: str) -> str | None:
    return next((panel for panel, names in PANELS.items() if name in names), None)


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Turn every error into one line on stderr and an exit code; --debug prints the traceback as well."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # The reader, such as `head`, has gone. Drop the rest of the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except Exception as error:
        below = ""
        if isinstance(error, errors.OutliveError):
            message, below = str(error), error.traceback if isinstance(error, errors.AppNotFound) else ""
            code = next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1)
        elif isinstance(error, UnicodeEncodeError):  # Of a word on the command line, or of a variable.
            message, code = f"{error.object[:100]!r} is not text in UTF-8", 2
        else:
            bug = f"this is a bug in outlive: {type(error).__name__}: {error}"
            message, code = f"{bug}; --debug prints the traceback", 1
        if logs.flush():  # Writing to a stderr that is full would block for ever.
            if debug:
                print(plain(logs.redacted(traceback.format_exc())), file=sys.stderr)
            screen.complain(message)
            if below:
                print(plain(logs.redacted(below)), file=sys.stderr)
        raise typer.Exit(code) from None
