"""How the store builds a `Statement`: the text by its name, the parameters in order, and a decoder for the rows.

One verb, from its SQL to its value. sql/statements has a text, with a name and with parameters by name:

    -- name: tokens_of
    select r.token from outlive.running r where r.worker = :worker::uuid order by r.token;

The verb of that name has those parameters and no body. Its decoder makes a list of tokens from the rows:

    @decoded_by(first_column)
    def tokens_of(worker: UUID) -> Statement[list[int]]: ...

A call runs nothing. It returns the statement, with `$1` in place of `:worker`, for a caller with a connection:

    store.tokens_of(me) == Statement("tokens_of", b"select … $1::uuid …", (me,), first_column, ("uuid",))

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
    """The statement of this name in sql/statements. Each of its parameters has a value, and others may have one too."""
    text, parameters, types = _text(name)
    for key, kind in parameters.items():
        if kind[-1] == "]" and values[key] is not None:
            given = values[key] = list(values[key])
            # SQL reads the same from null as from an array of nulls, which most ends of attempts would send in most of
            # their columns: null is cheaper to send and to read.
            if given and given[-1] is None and given.count(None) == len(given):
                values[key] = None
    return Statement(name, text, tuple(map(values.__getitem__, parameters)), decode, types, named=decode is table)


def decoded_by(decode: Callable[[list[Any]], Any]) -> Callable[[Verb[P, T]], Verb[P, T]]:
    """Declare a verb by its signature: the statement of its name, with its arguments, whose rows are decoded so."""

    def declare(verb: Verb[P, T]) -> Verb[P, T]:
        @functools.cache
        def signature() -> inspect.Signature:  # At the first call: that is when the statement is compiled.
            found, (_, parameters, _) = inspect.signature(verb), _text(verb.__name__)
            if differing := found.parameters.keys() ^ parameters.keys():
                names = ", ".join(sorted(differing))
                raise TypeError(f"the verb {verb.__name__} and its statement differ in their parameters: {names}")
            return found

        @functools.wraps(verb)
        def made(*args: P.args, **kwargs: P.kwargs) -> Statement[T]:
            bound = signature().bind(*args, **kwargs)
            bound.apply_defaults()
            return statement(verb.__name__, decode, **bound.arguments)

        return made

    return declare


_FOR_JOBS = frozenset(
    {
        *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "job_progress", "outcomes"),
        *("unfinished", "cancel", "send"),
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
