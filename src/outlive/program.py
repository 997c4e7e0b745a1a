"""How people type the commands of outlive here: `outlive jobs`, or `manage.py outlive jobs` in a project of Django."""

from __future__ import annotations

import os
import re

VARIABLE = "_OUTLIVE_MANAGE"
"""In a project of Django: the aliases of a backend and of its database. Commands that `manage.py` becomes read it."""
MIGRATE = r"outlive migrate\b(?: --database-url [^\s`]+)?"
_COMMAND = re.compile(
    rf"(?<![\w.])(?<!manage\.py )(?:(outlive worker pkg\.module:app)|({MIGRATE})|outlive "
    r"(?=(?:jobs|show|logs|killers|workers|stuck|release|retry|queues|sources|schedules|dashboard|doctor)\b))"
)


def name() -> str:
    """The program, with what each of its commands needs."""
    backend, _ = _aliases()
    return f"manage.py outlive{_option('backend', backend)}" if backend else "outlive"


def typed(text: str) -> str:
    """The text, with the commands in it as they are typed here."""
    backend, database = _aliases()

    def here(found: re.Match[str]) -> str:
        worker, migrate = found.groups()
        if worker:
            return f"manage.py outlive_worker{_option('backend', backend)}"
        return f"manage.py migrate{_option('database', database)}" if migrate else f"{name()} "

    return _COMMAND.sub(here, text) if backend else text


def _aliases() -> tuple[str, str]:
    backend, _, database = os.environ.get(VARIABLE, "").partition(":")
    return backend, database


def _option(name: str, alias: str) -> str:
    return "" if alias == "default" else f" --{name} {alias}"
