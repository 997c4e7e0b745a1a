"""dashboard: serves the dashboard; and how `up` starts it beside a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from outlive import embedded
from outlive.cli import screen
from outlive.cli.command import RUN, CommandContext, app, command
from outlive.errors import ConfigError

NEEDED = ("jinja2", "starlette", "uvicorn")
STOP_S = 3.0
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen. Default: 127.0.0.1:8321.")]
Token = Annotated[str | None, typer.Option(help="The operator's token. Default: dashboard_token, or one that is made.")]
Parent = Annotated[int | None, typer.Option(hidden=True, help="Stop when this process is gone.")]


@command(app, panel=RUN)
def dashboard(context: CommandContext, listen: Listen = None, token: Token = None, parent: Parent = None) -> None:
    """Look at jobs and workers in a browser, until Ctrl-C. Without a token in the settings, it prints a link.

    If one runs already beside `outlive up`, with the embedded server, this prints its link and ends.

    Example: outlive dashboard --listen 127.0.0.1:8400
    """
    expect_installed()
    from outlive.dashboard.access import kept_token
    from outlive.dashboard.serving import serve

    config = context.config_of({}, dashboard_listen=listen, dashboard_token=token)
    context.log_from(config.log_level)
    around = "" if parent is None else "\n"  # So that the link is not lost among log lines.
    kept = kept_token(Path(config.home) if config.home else embedded.default_directory())
    serve(config, lambda line: print(f"{around}{screen.plain(line)}{around}", flush=True), kept=kept, parent=parent)


def expect_installed() -> None:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(f"the dashboard needs {', '.join(missing)}: pip install 'outlive[dashboard]'")


class DashboardProcess:
    """The dashboard as a process beside a worker, if its extra is installed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, context: CommandContext, url: str) -> None:
        """Start it, once. If it can't start, it says why, and the worker works without it."""
        if self._process is not None or any(find_spec(name) is None for name in NEEDED):
            return
        words = [sys.executable, "-m", "outlive", "dashboard", "--parent", str(os.getpid())]
        if context.config_file is not None:
            words += ["--config", str(context.config_file)]
        # The address may have a password in it, which a list of processes must not show.
        environ = {**os.environ, "OUTLIVE_DATABASE_URL": url}
        self._process = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
