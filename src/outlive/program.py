"""How people type the commands of outlive here: `outlive jobs`, or `manage.py outlive jobs` in a project of Django."""

from __future__ import annotations

import os

VARIABLE = "_OUTLIVE_MANAGE"
"""In a project of Django: the aliases of a backend and of its database. Commands that `manage.py` becomes read it."""


def name() -> str:
    """The program, with what each of its commands needs."""
    backend, _ = _aliases()
    return f"manage.py outlive{_option('backend', backend)}" if backend else "outlive"


def command(words: str) -> str:
    """A command, such as `show ID`."""
    return f"{name()} {words}"


def worker() -> str:
    """The command that starts a worker."""
    backend, _ = _aliases()
    return f"manage.py outlive_worker{_option('backend', backend)}" if backend else "outlive worker pkg.module:app"


def migrate(*, option: str = "") -> str:
    """The command that brings the schema. The option names the database, which Django knows by an alias."""
    backend, database = _aliases()
    return f"manage.py migrate{_option('database', database)}" if backend else f"outlive migrate{option}"


def _aliases() -> tuple[str, str]:
    backend, _, database = os.environ.get(VARIABLE, "").partition(":")
    return backend, database


def _option(name: str, alias: str) -> str:
    return "" if alias == "default" else f" --{name} {alias}"
