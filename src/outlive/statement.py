"""Statements as values: a text, its parameters as plain values, and a decoder for its rows.

This module imports no driver: a job's process has no connection and must not pay for a driver with every fork.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T", covariant=True)
Row = tuple[Any, ...]


class Statement(msgspec.Struct, Generic[T], frozen=True):
    """A statement with its parameters, their SQL types, and a decoder for its rows.

    JSON is bytes, in parameters and in rows. `named`: rows are dicts, by the names of the columns.
    """

    name: str
    text: bytes
    parameters: tuple[object, ...]
    decode: Callable[[list[Any]], T]
    types: tuple[str, ...] = ()
    named: bool = False


def carry_out(steps: Generator[S, Any, R], ask: Callable[[S], object]) -> R:
    """Work of several steps: each asks for something, such as a statement, and is sent the answer."""
    with closing(steps):
        try:
            asked = next(steps)
            while True:
                asked = steps.send(ask(asked))
        except StopIteration as end:
            return cast("R", end.value)


async def acarry_out(steps: Generator[S, Any, R], ask: Callable[[S], Awaitable[object]]) -> R:
    """The async twin of `carry_out`. What raises in place of an answer raises in the steps too."""
    with closing(steps):
        try:
            asked = next(steps)
            while True:
                try:
                    answer = await ask(asked)
                except BaseException as error:
                    asked = steps.throw(error)
                else:
                    asked = steps.send(answer)
        except StopIteration as end:
            return cast("R", end.value)


# A job has no connection: it sends statements to its supervisor, by name, and gets the rows back.

_UUID = 1


def ask(statements: Sequence[Statement[Any]]) -> bytes:
    """Statements as bytes: names and parameters, without the texts."""
    return msgspec.msgpack.encode([(one.name, _travelling(one.parameters)) for one in statements])


def read_asked(body: bytes) -> list[tuple[str, list[object]]]:
    return msgspec.msgpack.decode(body, type=list[tuple[str, list[Any]]], ext_hook=_arrived)


def answer(results: Sequence[list[Row]]) -> bytes:
    """The rows of the statements as bytes."""
    return msgspec.msgpack.encode(_travelling(results))


def read_answers(statements: Sequence[Statement[T]], body: bytes) -> list[T]:
    answers = msgspec.msgpack.decode(body, type=list[list[tuple[Any, ...]]], ext_hook=_arrived)
    return [one.decode(rows) for one, rows in zip(statements, answers, strict=True)]


def _travelling(value: object) -> object:
    match value:
        case list() | tuple():
            return [_travelling(one) for one in value]
        case UUID():
            return msgspec.msgpack.Ext(_UUID, value.bytes)
        case datetime():
            return value.astimezone(UTC)
        case _:
            return value


def _arrived(code: int, data: memoryview) -> object:
    return UUID(bytes=bytes(data))
