"""How the store builds a `Statement`: the text by its name, the parameters in order, and a decoder for the rows.

A job has no connection to the queue. It asks its worker to run a statement, and may ask only for some (`asked_by_job`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from outlive import sql
from outlive.errors import BadArguments, StaleAttempt
from outlive.statement import Row, Statement

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Table = list[dict[str, Any]]
Verb = Callable[P, Statement[T]]

_SOURCES = sql.texts()


@functools.cache
def _text(name: str) -> tuple[bytes, dict[str, str], tuple[str, ...]]:
    """A statement, with its parameters and their types. It is compiled when it is first used: most commands use few."""
    text = sql.compiled(_SOURCES[name])
    return text.text.encode(), text.parameters, tuple(text.parameters.values())


def statement(name: str, decode: Callable[[list[Any]], Any], /, **values: Any) -> Statement[Any]:
    """The statement of this name in sql/statements, with a value for each of its parameters.

    An array of nulls is null.
    """
    text, parameters, types = _text(name)
    for key, kind in parameters.items():
        if kind[-1] == "]" and values[key] is not None:
            given = values[key] = list(values[key])
            if given and given[-1] is None and given.count(None) == len(given):
                values[key] = None
    return Statement(name, text, tuple(map(values.__getitem__, parameters)), decode, types, named=decode is table)


def decoded_by(decode: Callable[[list[Any]], Any]) -> Callable[[Verb[P, T]], Verb[P, T]]:
    """Declare a verb by its signature: the statement of its name, with its arguments, whose rows are decoded so."""

    def declare(verb: Verb[P, T]) -> Verb[P, T]:
        signature = functools.cache(lambda: inspect.signature(verb))

        def made(*args: P.args, **kwargs: P.kwargs) -> Statement[T]:
            bound = signature().bind(*args, **kwargs)
            bound.apply_defaults()
            return statement(verb.__name__, decode, **bound.arguments)

        return made

    return declare


_FOR_JOBS = frozenset(
    {
        *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "job_progress", "outcomes"),
        *("unserved_tasks", "cancel"),
        *("ask_source", "count_outcomes", "list_records"),
        *("open_batch", "close_batch", "cancel_batch", "batch_counts", "batch_done"),
    }
)
_WITH_TOKEN = ("ask_source", "count_outcomes")
"""The second parameter of these is the token of the attempt that calls a source."""


def asked_by_job(name: str, parameters: Sequence[object], token: int | None) -> Statement[list[Row]]:
    """The statement that the job of this attempt names. Its rows go back undecoded."""
    if name not in _FOR_JOBS:
        raise BadArguments(f"a job can't ask for the statement {name}")
    if name in _WITH_TOKEN and parameters[1] not in (None, token, [token]):
        raise StaleAttempt(f"a job asked for {name} with the token of an attempt that its process does not run")
    text, _, types = _text(name)
    return Statement(name, text, tuple(parameters), as_they_are, types)


# Decoders


def as_they_are(rows: list[Row]) -> list[Row]:
    return rows


def nothing(rows: list[Row]) -> None:
    return None


def structs(kind: type[S]) -> Callable[[list[Row]], list[S]]:
    return lambda rows: [kind(*row) for row in rows]


def table(rows: Table) -> Table:
    return rows


def first_column(rows: list[Row]) -> list[Any]:
    return [row[0] for row in rows]


def first_column_set(rows: list[Row]) -> set[Any]:
    return {row[0] for row in rows}


def scalar(rows: list[Row]) -> Any:
    return rows[0][0]


def pairs(rows: list[Row]) -> dict[Any, Any]:
    return dict(rows)


def any_row(rows: list[Row]) -> bool:
    return bool(rows)
