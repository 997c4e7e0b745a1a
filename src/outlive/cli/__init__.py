"""The command line. A command is a few lines over the store; nothing here decides what becomes of a job."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

MODULES = {
    "batches": ("batches",),
    "dashboard": ("dashboard",),
    "doctor": ("doctor",),
    "enqueue": ("enqueue",),
    "lab": ("demo", "bench", "gameday"),
    "show": ("show",),
    "logs": ("logs",),
    "lists": ("jobs", "killers", "workers", "stuck", "stats", "records"),
    "migrate": ("migrate",),
    "operators": ("retry", "cancel", "release", "prune"),
    "queues": ("queues",),
    "schedules": ("schedules",),
    "sources": ("sources",),
    "worker": ("worker", "up", "reap"),
}
"""The modules of this folder that register commands, with their commands, in the order of `outlive --help`."""


def main() -> None:
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # A terminal may lack a character.
    gc.disable()  # Imports make no garbage: this saves a tenth of the start.
    app = load(sys.argv[1:])
    gc.freeze()  # Nor does what they made become garbage: a search at exit takes a fifth of a short command.
    gc.enable()
    app(prog_name="outlive")


def load(words: Sequence[str] = ()) -> typer.Typer:
    """The command line with the command that these words begin with. Without one of ours, it has all commands."""
    named = [module for module, commands in MODULES.items() if words and words[0] in commands]
    for module in named or MODULES:
        import_module(f"outlive.cli.{module}")
    from outlive.cli.command import app

    if not named:
        return app
    small = copy(app)  # Typer builds every command that it has.
    small.registered_commands = [
        one for one in app.registered_commands if words[0] in (one.name, getattr(one.callback, "__name__", None))
    ]
    return small


def _open_standard_streams() -> None:
    """A daemon may be started with some of them closed. What is opened next would get their numbers, and be written to
    or handed to a child as its standard stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
