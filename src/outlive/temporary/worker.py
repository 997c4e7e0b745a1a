"""`outlive worker` as a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from outlive import config
from outlive.temporary.program import Program, started


def worker(
    target: str, *, url: str, slots: int, directory: Path, more: Mapping[str, str]
) -> AbstractContextManager[Program]:
    """A worker that is stopped afterwards, and killed if that takes long. `more` goes into its environment.

    The current directory may have an outlive.toml, so it works in another one.
    """
    words = [*worker_words(target, slots=slots), "--quiet"]
    return started(words, environment=worker_environment(url) | dict(more), directory=directory, name="the worker")


def worker_words(target: str, *, slots: int) -> list[str]:
    return [sys.executable, "-m", "outlive", "worker", target, "--slots", str(slots)]


def worker_environment(url: str) -> dict[str, str]:
    """The environment of a worker: this one, but with no other settings of outlive than the database."""
    given = os.environ.items()
    ours = {key: value for key, value in given if not key.startswith("OUTLIVE_") and key not in config.ALIASES}
    return ours | {"OUTLIVE_DATABASE_URL": url}
