"""The command line. A command is a few lines over the store; nothing here decides what becomes of a job."""

import os
import sys

# These modules register their commands.
from outlive.cli import doctor, enqueue, lab, lists, migrate, operators, queues, show, sources, worker  # noqa: F401
from outlive.cli.command import app as app


def main() -> None:
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # A terminal may lack a character.
    app(prog_name="outlive")


def _open_standard_streams() -> None:
    """A daemon may be started with some of them closed. What is opened next would get their numbers, and be written to
    or handed to a child as its standard stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
