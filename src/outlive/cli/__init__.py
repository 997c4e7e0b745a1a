"""The command line: every command is a few lines over the store. Nothing here decides what a job becomes."""

import sys

from outlive.cli import doctor, enqueue, lab, lists, migrate, operators, queues, reap, records, show, sources, worker
from outlive.cli.command import app

__all__ = [
    "app",
    "doctor",
    "enqueue",
    "lab",
    "lists",
    "main",
    "migrate",
    "operators",
    "queues",
    "reap",
    "records",
    "show",
    "sources",
    "worker",
]


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # A letter that a terminal lacks is no error.
    app(prog_name="outlive")
