"""The command line: in the test's process, or in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from typer.testing import CliRunner

from outlive.cli import load

PASSWORD = "s3cret-pass"


@dataclass(frozen=True)
class Ran:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """Runs commands on one database; without an address, on the one that the command finds."""

    url: str | None
    columns: int = 200
    package: str = "outlive"
    load: Callable[[list[str]], typer.Typer] = load

    def __call__(self, *words: object, input: str | bytes | None = None) -> Ran:
        arguments = [*map(str, words), *([] if self.url is None else ["--database-url", self.url])]
        result = CliRunner(env={"COLUMNS": str(self.columns)}).invoke(self.load(arguments), arguments, input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    def process(self, *words: object, **environment: str) -> "subprocess.Popen[str]":
        """Start the command as a process, with the address of the database in its environment."""
        url = {} if self.url is None else {"OUTLIVE_DATABASE_URL": self.url}
        return subprocess.Popen(
            [sys.executable, "-m", self.package, *map(str, words)],
            env={**os.environ, **url, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    """Give a list for commands that a test starts, and kill those that still run when the block ends."""
    commands: list[subprocess.Popen[str]] = []
    yield commands
    for command in commands:
        if command.poll() is None:
            command.kill()
        command.communicate()


def ended(process: "subprocess.Popen[str]", *, within_s: float = 60) -> Ran:
    """Wait for the end of a command; returns its result."""
    out, err = process.communicate(timeout=within_s)
    return Ran(process.returncode, out, err)
