"""The command line. A command is a few lines over the store; nothing here decides what becomes of a job."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING

from outlive import program

if TYPE_CHECKING:
    import typer

PANELS = {
    "Run": ("worker", "up", "reap", "dashboard", "demo"),
    "Look": (
        *("jobs", "show", "steps", "logs", "killers", "workers", "stuck", "stats", "records", "audit"),
        *("batches", "schedules", "sources", "queues"),
    ),
    "Act": ("enqueue", "retry", "repeat", "rerun", "supply", "send", "cancel", "release", "prune", "drain", "reload"),
    "Set up": ("migrate", "doctor", "verify"),
}
"""The commands by what people do, in the order of `outlive --help`."""
_SEVERAL = {
    "worker": ("up", "reap"),
    "lists": ("jobs", "killers", "stuck", "records", "audit"),
    "steps": ("rerun", "supply", "send"),
    "operators": ("retry", "repeat", "cancel", "release", "prune", "drain", "reload"),
}
"""Modules of this folder that register several commands. Each other command has a module of its own."""
MODULES = {name: name for names in PANELS.values() for name in names}
MODULES |= {name: module for module, names in _SEVERAL.items() for name in names}
"""Each command with the module that registers it."""


def main() -> None:
    restore = _die_of_ctrl_c()
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # A terminal may lack a character.
    _refuse_celery(sys.argv[1:])
    app = load(_completed() if "_OUTLIVE_COMPLETE" in os.environ else sys.argv[1:])
    gc.freeze()  # What the imports made never becomes garbage: a search at exit takes a tenth of a short command.
    restore()
    app(prog_name=program.name())


def _die_of_ctrl_c() -> Callable[[], object]:
    """Ctrl-C during the imports ends the command without a traceback. Returns what makes it an exception again."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # It is ignored, as below nohup.
        return lambda: None
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)


def _refuse_celery(words: Sequence[str]) -> None:
    """Say what to write in place of a command of Celery, or of an option of its worker."""
    if words and (words[0] == "worker" or words[0] not in MODULES):
        from outlive import foreign_options  # Not at the top: most commands need no hint.

        if hint := foreign_options.of_command(words):
            print(f"outlive: there is no {hint}", file=sys.stderr)
            sys.exit(2)


def load(words: Sequence[str] = ()) -> typer.Typer:
    """The command line with the command that these words begin with. Without one of ours, it has all commands."""
    from outlive.cli.command import app  # First: deep in nested imports, Python maps memory for many calls.

    names = [words[0]] if words and words[0] in MODULES else [*MODULES]
    for module in dict.fromkeys(MODULES[name] for name in names):
        import_module(f"outlive.cli.{module}")
    small = copy(app)  # Typer builds every command that it has.
    commands = {one.name: one for one in app.registered_commands}
    groups = {one.name: one for one in app.registered_groups}
    small.registered_commands = [commands[name] for name in names if name in commands]
    small.registered_groups = [groups[name] for name in names if name in groups]
    return small


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
