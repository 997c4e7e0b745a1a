"""How the store builds a `Statement`: the text by its name, the parameters in order, and a decoder for the rows.

A job has no connection to the queue. It asks its worker to run a statement, and may ask only for some (`asked_by_job`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from outlive import sql
from outlive.errors import BadArguments, StaleAttempt
from outlive.statement import BIGINTS, KINDS, Column, Kind, Row, Statement, column

S = TypeVar("S", bound=msgspec.Struct)
Names = Sequence[str]
Table = list[dict[str, Any]]

_SOURCES = sql.texts()


@functools.cache
def _text(name: str) -> tuple[bytes, tuple[str, ...], list[tuple[str, Kind]]]:
    """A statement, compiled when it is first used: most commands use few."""
    text = sql.compiled(_SOURCES[name])
    arrays = [(key, KINDS[kind]) for key, kind in text.parameters.items() if kind]
    return text.text.encode(), tuple(text.parameters), arrays


def statement(name: str, decode: Callable[[Names, list[Row]], Any], /, **values: Any) -> Statement[Any]:
    """The statement of this name in sql/statements, with a value for each of its parameters.

    The SQL says which parameters are arrays, and of what.
    """
    text, parameters, arrays = _text(name)
    for key, kind in arrays:
        value = values[key]
        if value is not None and type(value) is not Column:
            values[key] = column(kind, value)
    given = tuple(map(values.__getitem__, parameters))
    hot, silent = name == "end_and_claim", name == "enqueue_plain"
    return Statement(name, text, given, decode, hot=hot, named=decode is table, silent=silent)


_FOR_JOBS = frozenset(
    {
        *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "outcomes", "unserved_tasks", "cancel"),
        *("ask_source", "count_outcomes", "list_records"),
        *("open_batch", "close_batch", "cancel_batch", "batch_counts", "batch_done"),
    }
)
_WITH_TOKEN = ("ask_source", "count_outcomes")
"""The second parameter of these is the token of the attempt that calls a source."""


def asked_by_job(name: str, parameters: Sequence[object], token: int | None) -> Statement[tuple[Names, list[Row]]]:
    """The statement that the job of this attempt names. Its rows go back undecoded."""
    if name not in _FOR_JOBS:
        raise BadArguments(f"a job can't ask for the statement {name}")
    if name in _WITH_TOKEN and parameters[1] not in (None, token, column(BIGINTS, [token])):
        raise StaleAttempt(f"a job asked for {name} with the token of an attempt that its process does not run")
    return Statement(name, _text(name)[0], tuple(parameters), lambda names, rows: (names, rows))


# Decoders


def nothing(_: Names, rows: list[Row]) -> None:
    return None


def structs(kind: type[S]) -> Callable[[Names, list[Row]], list[S]]:
    return lambda _, rows: [kind(*row) for row in rows]


def table(names: Names, rows: list[Row]) -> Table:
    return [dict(zip(names, row, strict=True)) for row in rows]


def first_column(_: Names, rows: list[Row]) -> list[Any]:
    return [row[0] for row in rows]


def first_column_set(_: Names, rows: list[Row]) -> set[Any]:
    return {row[0] for row in rows}


def scalar(_: Names, rows: list[Row]) -> Any:
    return rows[0][0]


def pairs(_: Names, rows: list[Row]) -> dict[Any, Any]:
    return dict(rows)


def how_many(batch: int) -> Callable[[Names, list[Row]], tuple[int, bool]]:
    """How many rows of a batch were changed, and whether there may be more."""
    return lambda _, rows: (rows[0][0] or 0, rows[0][1] == batch)


def any_row(_: Names, rows: list[Row]) -> bool:
    return bool(rows)
