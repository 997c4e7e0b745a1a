"""The command line. A command is a few lines over the store; nothing here decides what becomes of a job."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING

from outlive import program

if TYPE_CHECKING:
    import typer
    from typer.models import CommandInfo

MODULES = {
    "worker": ("worker", "up", "reap"),
    "dashboard": ("dashboard",),
    "demo": ("demo",),
    "lists": ("jobs", "killers", "workers", "stuck", "records"),
    "show": ("show",),
    "logs": ("logs",),
    "stats": ("stats",),
    "batches": ("batches",),
    "schedules": ("schedules",),
    "sources": ("sources",),
    "queues": ("queues",),
    "audit": ("audit",),
    "enqueue": ("enqueue",),
    "operators": ("retry", "cancel", "release", "prune"),
    "drain": ("drain",),
    "migrate": ("migrate",),
    "doctor": ("doctor",),
}
"""The modules of this folder that register commands, with their commands, in the order of `outlive --help`."""


LONG = ("worker", "up", "reap", "dashboard", "demo")
"""Commands that start threads and processes, and leave as any program."""
ORDER = {
    "Run": ("worker", "up", "reap", "dashboard", "demo"),
    "Look": ("jobs", "show", "logs", "killers", "workers", "stuck", "stats", "records", "audit"),
    "Act": ("enqueue", "retry", "cancel", "release", "prune", "drain"),
    "Set up": ("migrate", "doctor"),
}
"""The parts of `outlive --help` by what people do, and the order of their commands. Groups come after these."""


def main() -> None:
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # A terminal may lack a character.
    gc.disable()  # Imports make no garbage: this saves a tenth of the start.
    app = load(_completed() if "_OUTLIVE_COMPLETE" in os.environ else sys.argv[1:])
    gc.freeze()  # Nor does what they made become garbage: a search at exit takes a fifth of a short command.
    gc.enable()
    try:
        app(prog_name=program.name())
    except SystemExit as end:
        if not isinstance(end.code, int) or (sys.argv[1:2] and sys.argv[1] in LONG):
            raise
        _leave(end.code)


def _leave(code: int) -> None:
    """End at once. To take all modules down would cost a short command a twentieth of its time."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # Its reader has gone.
            stream.flush()
    os._exit(code)


def load(words: Sequence[str] = ()) -> typer.Typer:
    """The command line with the command that these words begin with. Without one of ours, it has all commands."""
    from outlive.cli.command import app  # First: deep in nested imports, Python maps memory for many calls.

    named = [module for module, commands in MODULES.items() if words and words[0] in commands]
    for module in named or MODULES:
        import_module(f"outlive.cli.{module}")
    if not named:
        names = [name for names in ORDER.values() for name in names]
        app.registered_commands.sort(key=lambda one: names.index(_name(one)))
        app.registered_groups.sort(key=lambda group: [*MODULES].index(str(group.name)))
        return app
    small = copy(app)  # Typer builds every command that it has.
    small.registered_commands = [one for one in app.registered_commands if _name(one) == words[0]]
    return small


def _name(one: CommandInfo) -> str:
    return one.name or getattr(one.callback, "__name__")  # noqa: B009


def _completed() -> list[str]:
    """The words of the line that a shell completes, if the command is complete."""
    words = (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or "").split()
    return words[1:] if len(words) > 2 else []


def _open_standard_streams() -> None:
    """A daemon may be started with some of them closed. What is opened next would get their numbers, and be written to
    or handed to a child as its standard stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
