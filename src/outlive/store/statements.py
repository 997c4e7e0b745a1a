"""How the store builds a `Statement`: the text by its name, the parameters in order, and a decoder for the rows.

A verb without a body is the statement of its name in sql/statements, with the same parameters. Its type says what
becomes of the rows, unless that is `decoded_by` a function of its own. A call runs nothing:

    def tokens_of(worker: UUID) -> Statement[list[int]]: ...

    store.tokens_of(me) == Statement("tokens_of", b"select … $1::uuid …", (me,), first_column, ("uuid",))
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import FunctionType
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
    """Declare a verb whose rows are decoded in its own way."""
    return lambda verb: declared(verb, decode)


def declared(verb: Verb[P, T], decode: Callable[[list[Any]], Any] | None = None) -> Verb[P, T]:
    """The verb that a signature declares: the statement of its name, with its arguments.

    What is given for a parameter of type json is encoded, unless it is already.
    """

    @functools.cache
    def known() -> tuple[inspect.Signature, list[str], Callable[[list[Any]], Any]]:
        """Its signature, its parameters of type json, and its decoder. The statement is compiled at the first call."""
        found, (_, parameters, _) = inspect.signature(verb), _text(verb.__name__)
        if differing := found.parameters.keys() ^ parameters.keys():
            names = ", ".join(sorted(differing))
            raise TypeError(f"the verb {verb.__name__} and its statement differ in their parameters: {names}")
        json = [key for key, kind in parameters.items() if kind in ("json", "jsonb")]
        return found, json, decode or _decoder(eval(verb.__annotations__["return"], verb.__globals__).__args__[0])

    @functools.wraps(verb)
    def made(*args: P.args, **kwargs: P.kwargs) -> Statement[T]:
        signature, json, decoder = known()
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        for key in json:
            if not isinstance(values[key], bytes | None):
                values[key] = msgspec.json.encode(values[key], enc_hook=list)  # An iterator is written as a list.
        return statement(verb.__name__, decoder, **values)

    return made


def is_declaration(found: object) -> bool:
    """Whether this is a function without a body that returns a statement."""
    if not isinstance(found, FunctionType) or found.__code__.co_names:
        return False
    return str(found.__annotations__.get("return")).startswith("Statement[")


_WITH_TOKEN = ("ask_source", "count_outcomes")
"""The second parameter of these is the token of the attempt that calls a source."""
_FOR_JOBS = {
    *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "job_progress", "outcomes", "unfinished", "cancel"),
    *("send", "list_records", "open_batch", "close_batch", "cancel_batch", "batch_counts", "batch_done", *_WITH_TOKEN),
    *("find_jobs", "job_infos", "queue_info", "schedule_infos", "signature"),
    # What handles do: a job may slow its source, and make the schedule of a customer.
    *("retry", "release", "pause_queue", "resume_queue", "set_source", "pause_source", "resume_source"),
    *("add_schedule", "set_schedule", "pause_schedule", "resume_schedule", "run_schedule", "reset_schedule"),
    *("remove_schedule", "set_worker", "drain_workers", "reload_workers"),
}
"""What the calls of a job may need. Their rows are read by position: a statement whose decoder wants names fails."""


def asked_by_job(name: str, parameters: Sequence[object], token: int | None) -> Statement[list[Row]]:
    """What the job of this attempt asks its worker to run: it has no connection. The rows go back undecoded."""
    if name not in _FOR_JOBS:
        raise BadArguments(
            f"a job can't do this ({name}): it has no connection of its own; do it in a program that has one"
        )
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


def true(rows: list[Row]) -> bool:
    """Whether there is a row, and it does not say false."""
    return bool(rows) and not any(value is False for value in rows[0])


def _decoder(kind: Any) -> Callable[[list[Any]], Any]:
    """How rows become what a verb returns: its type says it."""
    known: dict[Any, Callable[[list[Any]], Any]] = {type(None): nothing, bool: true, Table: table}
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in known or origin in (set, dict):
        return known.get(kind) or (first_column_set if origin is set else dict)
    if origin is list and hasattr(parts[0], "__match_args__"):
        return structs(parts[0])
    if origin is list:
        return list if parts[0] is Any or typing.get_origin(parts[0]) is tuple else first_column
    of = next((part for part in parts if part is not type(None)), kind)
    value = (lambda row: of(*row)) if hasattr(of, "__match_args__") else itemgetter(0)
    return lambda rows: None if type(None) in parts and not rows else value(rows[0])
