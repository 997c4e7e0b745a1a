"""The options of other job systems, and those of outlive that do the same. Errors suggest by foreign_options.toml.

Imported only for an error, and by outlive.celery.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Word(NamedTuple):
    """What to write in place of an option of another system."""

    option: str
    place: str
    """Where outlive takes it."""
    note: str = ""
    """How it differs."""


def _each(table: Mapping[str, str]) -> dict[str, str]:
    """Several names may share a text."""
    return {name: words for names, words in table.items() for name in names.split()}


_TABLES: Any = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WORDS = {system: {name: Word(*word) for name, word in of.items()} for system, of in _TABLES["options"].items()}
"""By system."""
ATTRIBUTES, SHIM = ({what: _each(of) for what, of in _TABLES[key].items()} for key in ("attributes", "shim"))
LEFT_OUT, SETTINGS, CELERY_NAMES = (_each(_TABLES[key]) for key in ("left_out", "settings", "celery_names"))
COMMANDS, WORKER_OPTIONS = (_each(_TABLES[key]) for key in ("celery_commands", "celery_worker_options"))
NOT_SHARED: dict[str, str] = _TABLES["not_shared"]
_NOT_SENT: dict[str, str] = _TABLES["not_sent"]
_IN_CELERY = ("delay", "apply_async", "s", "si", "AsyncResult")


def missing(what: str, owner: object, name: str) -> AttributeError:
    """The error for an attribute that `what` does not have, with what to write if another system has it."""
    hint = (ATTRIBUTES | SHIM)[what].get(name)
    celery = " (outlive.celery has it, for code that moves from Celery)" if name in _IN_CELERY else ""
    return AttributeError(f"{what} has no {name}" + (f": {hint}{celery}" if hint else ""), name=name, obj=owner)


def of_command(words: Sequence[str]) -> str | None:
    """What to write in place of a command of Celery, or of an option of its worker."""
    table, given = (WORKER_OPTIONS, words[1:]) if words[0] == "worker" else (COMMANDS, words[:1])
    names = (word.partition("=")[0] for word in given)
    return next((f"{one}: {table[one]}" for one in names if one in table), None)


def not_sent(task: str, name: str, names: Collection[str]) -> str:
    """What to write in place of an option of `apply_async`, where `task.using` takes the options `names`."""
    option, note = (WORDS["celery"][name].option, WORDS["celery"][name].note) if name in WORDS["celery"] else (name, "")
    if hint := _NOT_SENT.get(name) or LEFT_OUT.get(name):
        return hint
    if option in names:
        return f"write {task}.task.using({option}=…).enqueue(…)" + (f" ({note})" if note else "")
    return f"give it to the task, or write {task}.task.using(…).enqueue(…)"


def of_canvas(name: str) -> str:
    """What to write in place of an option of a canvas."""
    return SHIM["a canvas"][name] if name == "link_error" else f"write .set({name}=…) on its signatures"


def suggestion(name: str, names: Collection[str]) -> str | None:
    """What to write in place of `name` where the options `names` are taken; None if the table does not have it.

    An option of outlive may be in the wrong place: `fetch.enqueue(url, delay=5)`.
    """
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    every = {word: found for words in WORDS.values() for word, found in words.items()}
    ours = {found.option: found for found in every.values()}
    found = every.get(name) or ours.get(name)
    if found is None:
        return None
    what = f"did you mean {found.option}?" if found.option in names else f"use {found.place}({found.option}=…)"
    return f"{what} ({found.note})" if found.note and name != found.option else what
