"""A statement whose parameters are text that the server casts (`$1::text::uuid[]`), as every library can send it.

Our own connections send parameters in Postgres' binary form, which is faster. The caller's libraries don't take that.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from outlive import statement
from outlive.statement import Column, Kind, Statement


def as_text(one: Statement[Any], *, numbered: bool) -> tuple[str, list[str | None]]:
    """Its text and its values, for a library that numbers parameters ($1), or for one that does not (%s)."""
    values = [_value_as_text(value) for value in one.parameters]
    text, order = _casting(one.text, numbered)
    return text, values if numbered else [values[n] for n in order]


@functools.cache
def _casting(text: bytes, numbered: bool) -> tuple[str, list[int]]:
    """The text with a cast from text for each parameter, and for %s the parameters in the order of their places."""
    plain = text.decode()
    if numbered:
        return _PARAMETER.sub(r"$\1::text::", plain), []
    order = [int(number) - 1 for number in _PARAMETER.findall(plain)]
    return _PARAMETER.sub("%s::text::", plain.replace("%", "%%")), order


_PARAMETER = re.compile(r"\$(\d+)::")


def _value_as_text(value: object) -> str | None:
    match value:
        case None | str():
            return value
        case Column():
            return _column_as_text(value)
        case datetime():
            return value.isoformat()
        case _:
            return str(value)  # A number, a boolean or a UUID.


def _column_as_text(column: Column) -> str:
    """An array as Postgres writes it, or JSON as it is."""
    if column.oid == statement.JSONS.element:
        return column.data.decode()
    read, data, end, parts = _READ[column.oid], column.data, _HEADER_BYTES, []
    while end < len(data):
        start = end + 4
        length = int.from_bytes(data[end:start], "big", signed=True)
        end = start + max(length, 0)
        parts.append("null" if length < 0 else read(data[start:end]))
    return f"{{{','.join(parts)}}}"


_HEADER_BYTES = 20
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _quoted(data: bytes) -> str:
    text = data.decode().replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _number(kind: Kind) -> Callable[[bytes], str]:
    unpack = struct.Struct(f">{kind.code}").unpack
    return lambda data: str(unpack(data)[0])


def _moment(data: bytes) -> str:
    moment = _EPOCH + timedelta(microseconds=int.from_bytes(data, "big", signed=True))
    return f'"{moment.isoformat()}"'


_NUMBERS = (statement.BIGINTS, statement.INTS, statement.SMALLINTS, statement.FLOATS, statement.BOOLEANS)
_READ: dict[int, Callable[[bytes], str]] = {
    **{kind.array: _number(kind) for kind in _NUMBERS},
    statement.TEXTS.array: _quoted,
    statement.JSONS.array: _quoted,
    statement.JSONBS.array: lambda data: _quoted(data[1:]),
    statement.UUIDS.array: bytes.hex,
    statement.TIMES.array: _moment,
}
"""For each type of array, the text of an element."""
