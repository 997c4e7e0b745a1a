"""How the store builds a `Statement`: the text by its name, the parameters in order, and a decoder for the rows.

A verb without a body has the parameters of the statement of its name in sql/statements. A call runs nothing:

    @decoded_by(first_column)
    def tokens_of(worker: UUID) -> Statement[list[int]]: ...

    store.tokens_of(me) == Statement("tokens_of", b"select … $1::uuid …", (me,), first_column, ("uuid",))
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
    """Declare a verb by its signature: the statement of its name, with its arguments, whose rows are decoded so.

    What is given for a parameter of type json is encoded, unless it is already.
    """

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
            values = bound.arguments
            for key, kind in _text(verb.__name__)[1].items():
                if kind in ("json", "jsonb") and not isinstance(values[key], bytes | None):
                    values[key] = msgspec.json.encode(values[key], enc_hook=list)  # An iterator is written as a list.
            return statement(verb.__name__, decode, **values)

        return made

    return declare


_WITH_TOKEN = ("ask_source", "count_outcomes")
"""The second parameter of these is the token of the attempt that calls a source."""
_FOR_JOBS = {
    *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "job_progress", "outcomes", "unfinished", "cancel"),
    *("send", "list_records", "open_batch", "close_batch", "cancel_batch", "batch_counts", "batch_done", *_WITH_TOKEN),
}


def asked_by_job(name: str, parameters: Sequence[object], token: int | None) -> Statement[list[Row]]:
    """What the job of this attempt asks its worker to run: it has no connection. The rows go back undecoded."""
    if name not in _FOR_JOBS:
        raise BadArguments(f"a job can't ask for the statement {name}")
    if name in _WITH_TOKEN and parameters[1] not in (None, token, [token]):
        raise StaleAttempt(f"a job asked for {name} with the token of an attempt that its process does not run")
    text, _, types = _text(name)
    return Statement(name, text, tuple(parameters), list, types)


# Decoders


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
