"""Parameters and JSON in Postgres' binary form, which the server reads without a cast."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import repeat
from typing import Any

import msgspec
from psycopg import pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.errors import NumericValueOutOfRange

from outlive.statement import Statement

_NULL = b"\xff\xff\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_PER_MICROSECOND = timedelta(microseconds=1)


class _Type(msgspec.Struct, frozen=True):
    """A type by its oid. `number` packs the size of a number and the number itself, as elements of arrays are."""

    oid: int
    pack: Callable[[Any], bytes]
    number: struct.Struct | None = None


def packed(statement: Statement[Any]) -> list[bytes | None]:
    """The parameters of a statement. Like the server, this refuses a number that does not fit its type."""
    try:
        return [
            None if value is None else pack(value)
            for pack, value in zip(_packers(statement.types), statement.parameters, strict=True)
        ]
    except struct.error as error:
        raise NumericValueOutOfRange(f"a parameter of {statement.name} is out of range: {error}") from error


@cache
def _packers(types: tuple[str, ...]) -> list[Callable[[Any], bytes]]:
    return [_PACKERS[kind] for kind in types]


def _array(kind: _Type, values: Sequence[Any]) -> bytes:
    if not values:
        return struct.pack(">iiI", 0, 0, kind.oid)
    if kind.number and None not in values:
        # Not one format for the whole array: `struct` keeps its last hundred formats, each as large as its array.
        parts = list(map(kind.number.pack, repeat(kind.number.size - len(_NULL)), values))
    elif values[-1] is values[0] and values.count(values[0]) == len(values):  # In most columns of a batch of jobs.
        parts = [_sized(kind.pack(values[0]))] * len(values)
    else:
        parts = [_NULL if value is None else _sized(kind.pack(value)) for value in values]
    return struct.pack(">iiIii", 1, _NULL in parts, kind.oid, len(parts), 1) + b"".join(parts)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _microseconds(moment: datetime) -> bytes:
    if moment.replace(tzinfo=None) == datetime.min:  # -infinity: earlier than any time in Python.
        return struct.pack(">q", -(2**63))
    return struct.pack(">q", (moment - _EPOCH) // _PER_MICROSECOND)


def _number(oid: int, code: str) -> _Type:
    return _Type(oid, struct.Struct(f">{code}").pack, struct.Struct(f">i{code}"))


_TYPES = {
    "bigint": _number(20, "q"),
    "int": _number(23, "i"),
    "smallint": _number(21, "h"),
    "double precision": _number(701, "d"),
    "boolean": _number(16, "?"),
    "text": _Type(25, str.encode),
    "uuid": _Type(2950, lambda value: value.bytes),
    "json": _Type(114, lambda value: value),
    "jsonb": _Type(3802, lambda value: b"\1" + value),
    "bytea": _Type(17, lambda value: value),
    "timestamptz": _Type(1184, _microseconds),
}
_PACKERS: dict[str, Callable[[Any], bytes]] = {
    **{name: kind.pack for name, kind in _TYPES.items()},
    **{f"{name}[]": partial(_array, kind) for name, kind in _TYPES.items()},
}


class _RawJson(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class _RawJsonb(_RawJson):
    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]  # Without the byte that gives the version of the format.


def read_json_raw(context: AdaptContext) -> None:
    """Let psycopg return JSON as raw bytes, which the caller decodes if it needs to."""
    context.adapters.register_loader("json", _RawJson)
    context.adapters.register_loader("jsonb", _RawJsonb)
