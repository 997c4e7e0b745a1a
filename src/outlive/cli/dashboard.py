"""dashboard: serves the dashboard, and gives people tokens for it; and how `up` starts it beside a worker."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from outlive import embedded, linux, program, store
from outlive.cli import screen
from outlive.cli.command import CommandContext, LogFormat, command, group
from outlive.cli.screen import Column, Listing, Row, of, time_of
from outlive.errors import ConfigError, OutliveError
from outlive.humanize import plain
from outlive.temporary.program import stop
from outlive.validation import choice, identifier

NEEDED = ("jinja2", "starlette", "uvicorn")
TOKEN_BYTES = 24
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen. Default: 127.0.0.1:8321.")]
Token = Annotated[str | None, typer.Option(help="The operator's token. Default: dashboard_token, or one that is made.")]
RootPath = Annotated[
    str | None, typer.Option(metavar="PATH", help="Serve below this path, e.g. /jobs. Default: dashboard_root_path.")
]
Parent = Annotated[int | None, typer.Option(hidden=True, help="Stop when this process is gone.")]
Name = Annotated[str, typer.Argument(help="The name of the person, as the audit has it.")]
Role = Annotated[str, typer.Option(help="operator, who may act, or viewer, who may only look.")]

dashboard_app = group("dashboard")
_TOKEN_HELP = """Give people tokens of their own, and take them back.

Example: outlive dashboard token add anna --role operator"""
token_app = group("token", dashboard_app, no_args_is_help=True, help=_TOKEN_HELP)
_log = logging.getLogger("outlive.dashboard")
TOKENS = (Column("name", of("name")), Column("role", of("role")), Column("since", time_of("created_at")))


@command(dashboard_app, callback=True, example="dashboard --listen 127.0.0.1:8400")
def dashboard(
    context: CommandContext,
    listen: Listen = None,
    root_path: RootPath = None,
    token: Token = None,
    log_format: LogFormat = None,
    parent: Parent = None,
) -> None:
    """Look at jobs and workers in a browser, until Ctrl-C. Without a token in the settings, it prints a link.

    If one runs already beside `outlive up`, with the embedded server, this prints its link and ends.
    """
    expect_installed()
    from outlive.dashboard.access import kept_token
    from outlive.dashboard.serving import serve

    flags = {"dashboard_listen": listen, "dashboard_root_path": root_path, "dashboard_token": token}
    config = context.config_of({}, **flags, log_format=log_format)
    context.log_from(config.log_level, config.log_format)
    around = "" if parent is None else "\n"  # So that the link is not lost among log lines.
    own = config.database_url and not embedded.is_at(config.database_url, config.home)
    kept = None if own else kept_token(Path(config.home) if config.home else embedded.default_directory())
    try:
        serve(config, lambda line: print(f"{around}{plain(line)}{around}", flush=True), kept=kept, parent=parent)
    except ConfigError as error:
        if parent is None:
            raise
        _log.error("%s", error)  # In the form of the worker's own lines.
        raise typer.Exit(2) from None


@command(token_app, example="dashboard token add anna --role operator")
def add(context: CommandContext, name: Name, role: Role = "viewer") -> None:
    """Give a person a token. It is printed once, and only its hash is stored. Dashboards that run know it at once."""
    choice("--role", role, "operator", "viewer")
    identifier("the name of a person", name)
    if name in ("operator", "viewer"):
        raise ConfigError(f"{name} is a role: name the person")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    adding = store.add_dashboard_token(name, role=role, hash=hashlib.sha256(token.encode()).digest())
    if not context.audited(adding, "add token", {"name": name, "role": role}):
        remove = program.command(f"dashboard token remove {name}")
        raise OutliveError(f"{name} has a token already: `{remove}` takes it back")
    print(token, flush=True)


@command(token_app, "list", example="dashboard token list")
def list_tokens(context: CommandContext) -> Listing[Sequence[Row]]:
    """List the people who have a token."""
    return context.rows(store.list_dashboard_tokens(), TOKENS, "no person has a token")


@command(token_app, example="dashboard token remove anna")
def remove(context: CommandContext, name: Name) -> None:
    """Take back the token of a person. It no longer logs in, and the sessions that it has opened end within seconds."""
    if not context.audited(store.remove_dashboard_token(name), "remove token", {"name": name}):
        raise OutliveError(f"{name} has no token; `{program.command('dashboard token list')}` lists those who have")
    screen.say(f"the token of {name} is removed")


def expect_installed() -> None:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(f"the dashboard needs {', '.join(missing)}: pip install 'outlive[dashboard]'")


@contextmanager
def beside_worker(context: CommandContext, url: str, log_format: str) -> Iterator[None]:
    """The dashboard as a process. If it can't start, a line says why, and the worker works without it."""
    try:
        expect_installed()
    except ConfigError as error:
        _log.warning("%s", error)
        yield
        return
    words = [sys.executable, "-m", "outlive", "dashboard", "--parent", str(os.getpid()), "--log-format", log_format]
    if context.config_file is not None:
        words += ["--config", str(context.config_file)]
    # The address may have a password in it, which a list of processes must not show.
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": url}
    process = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, preexec_fn=linux.unblock_signals)
    try:
        yield
    finally:
        stop(process)
