"""The command line: every command is a few lines over the store. Nothing here decides what a job becomes."""

import sys

from outlive.cli import calling, changing, doctor, enqueuing, extras, reading, reaping, schema, working
from outlive.cli.common import app

__all__ = [
    "app",
    "calling",
    "changing",
    "doctor",
    "enqueuing",
    "extras",
    "main",
    "reading",
    "reaping",
    "schema",
    "working",
]


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # A letter that a terminal lacks is no error.
    app(prog_name="outlive")
