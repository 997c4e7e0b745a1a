"""Statements as values: a text, its parameters in Postgres' binary form, and a decoder for its rows.

This module imports no driver: a job's process has no connection and must not pay for a driver with every fork.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import repeat
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

T = TypeVar("T")
Row = tuple[Any, ...]


class Statement(msgspec.Struct, Generic[T], frozen=True):
    """A statement with its parameters and a decoder for its rows.

    `hot`: prepare it on first use. `named`: its decoder needs the names of the columns, which are slow to read.
    `silent`: it returns no row, and its parameters are texts, uuids and ints of four bytes, so it needs no cursor.
    """

    name: str
    text: bytes
    parameters: tuple[object, ...]
    decode: Callable[[Sequence[str], list[Row]], T]
    hot: bool = False
    named: bool = False
    silent: bool = False


class Kind(msgspec.Struct, frozen=True):
    """A type of array parameter: the oids of element and array, and the encoder of an element.

    `code` is the format of a number for `struct`.
    """

    element: int
    array: int
    write: Callable[[Any], bytes]
    code: str = ""


class Column(msgspec.Struct, frozen=True):
    """A parameter in Postgres' binary form, such as an array. It is encoded once and read without a cast."""

    oid: int
    data: bytes


def column(kind: Kind, values: Iterable[object]) -> Column | None:
    """The values as one array parameter; None if every value is null."""
    values = list(values)
    if not values:
        return Column(kind.array, struct.pack(">iiI", 0, 0, kind.element))
    if kind.code and None not in values:
        number = _sized_number(kind.code)
        head = struct.pack(">iiIii", 1, 0, kind.element, len(values), 1)
        return Column(kind.array, head + b"".join(map(number.pack, repeat(number.size - _SIZE_BYTES), values)))
    write, first = kind.write, values[0]
    if values[-1] is first and values.count(first) == len(values):  # As in most columns of a batch of jobs.
        if first is None:
            return None
        parts = [_sized(write(first))] * len(values)
    else:
        parts = [_NULL if value is None else _sized(write(value)) for value in values]
    head = struct.pack(">iiIii", 1, _NULL in parts, kind.element, len(parts), 1)
    return Column(kind.array, head + b"".join(parts))


_NULL = b"\xff\xff\xff\xff"
_SIZE_BYTES = 4


@cache
def _sized_number(code: str) -> struct.Struct:
    """An element with its size. One format for a whole array would be another one for each length: `struct` keeps the
    last hundred formats, and one for a thousand numbers takes 64 kB."""
    return struct.Struct(f">i{code}")


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def json(data: bytes | None) -> Column | None:
    """JSON as one parameter. It goes as it is, without copies: it may be as large as all that a job brings."""
    return None if data is None else Column(JSONS.element, data)


def _microseconds(moment: datetime) -> bytes:
    if moment.replace(tzinfo=None) == datetime.min:  # -infinity: earlier than any time in Python.
        return struct.pack(">q", -(2**63))
    return struct.pack(">q", (moment - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


def _numbers(element: int, array: int, code: str) -> Kind:
    return Kind(element, array, struct.Struct(f">{code}").pack, code)


BIGINTS = _numbers(20, 1016, "q")
INTS = _numbers(23, 1007, "i")
SMALLINTS = _numbers(21, 1005, "h")
FLOATS = _numbers(701, 1022, "d")
BOOLEANS = _numbers(16, 1000, "?")
TEXTS = Kind(25, 1009, str.encode)
UUIDS = Kind(2950, 2951, lambda value: value.bytes)
JSONS = Kind(114, 199, lambda value: value)
JSONBS = Kind(3802, 3807, lambda value: b"\1" + value)
TIMES = Kind(1184, 1185, _microseconds)
KINDS = {
    "bigint": BIGINTS,
    "int": INTS,
    "smallint": SMALLINTS,
    "double precision": FLOATS,
    "boolean": BOOLEANS,
    "text": TEXTS,
    "uuid": UUIDS,
    "json": JSONS,
    "jsonb": JSONBS,
    "timestamptz": TIMES,
}


# A job has no connection: it sends statements to its supervisor, by name, and gets the rows back.

_UUID, _COLUMN = 1, 2


def ask(statements: Sequence[Statement[Any]]) -> bytes:
    """Statements as bytes: names and parameters, without the texts."""
    return msgspec.msgpack.encode([(one.name, [_travelling(value) for value in one.parameters]) for one in statements])


def read_asked(body: bytes) -> list[tuple[str, list[object]]]:
    return msgspec.msgpack.decode(body, type=list[tuple[str, list[Any]]], ext_hook=_arrived)


def answer(results: Sequence[tuple[Sequence[str], list[Row]]]) -> bytes:
    """The rows of the statements, with the names of their columns, as bytes."""
    return msgspec.msgpack.encode([(names, [[_travelling(v) for v in row] for row in rows]) for names, rows in results])


def read_answers(statements: Sequence[Statement[T]], body: bytes) -> list[T]:
    answers = msgspec.msgpack.decode(body, type=list[tuple[list[str], list[tuple[Any, ...]]]], ext_hook=_arrived)
    return [one.decode(names, rows) for one, (names, rows) in zip(statements, answers, strict=True)]


def _travelling(value: object) -> object:
    match value:
        case UUID():
            return msgspec.msgpack.Ext(_UUID, value.bytes)
        case Column():
            return msgspec.msgpack.Ext(_COLUMN, value.oid.to_bytes(4, "big") + value.data)
        case datetime():
            return value.astimezone(UTC)
        case _:
            return value


def _arrived(code: int, data: memoryview) -> object:
    if code == _UUID:
        return UUID(bytes=bytes(data))
    return Column(int.from_bytes(data[:4], "big"), bytes(data[4:]))
