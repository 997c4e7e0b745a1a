"""JSON as it travels: what a job is given and what it gives back must come out as it went in.

msgspec is fast and lenient: it turns NaN into null, sets into lists, bytes into base64 and int keys into text.
Here a value is encoded only if decoding gives it back, so a job never sees something else than was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

POSITIONAL = "*"
"""The key under which positional arguments travel beside keyword ones; no parameter of a function is named so."""

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()
_reader = msgspec.json.Decoder(msgspec.Raw)


class NotJson(ValueError):
    """A value that JSON can't carry unchanged; the message names the place and the reason."""


def encode(value: object, name: str = "value") -> bytes:
    """The value as JSON; NotJson if it would come out as something else."""
    try:
        data = _encoder.encode(value)
        faithful = _decoder.decode(data) == value
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotJson(_explain(value, name) or f"{name} can't be written as JSON: {error}") from None
    if not faithful or b"\\u0000" in data:
        reason = _explain(value, name)
        if reason or not faithful:
            raise NotJson(reason or f"{name} would come out of JSON as something else")
    return data


def decode(data: bytes | str) -> object:
    return _decoder.decode(data)


def check(data: bytes) -> None:
    """Read JSON that a job has sent, and keep nothing of it; NotJson if it is something else."""
    try:
        _reader.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise NotJson(f"it is no JSON: {error}") from None


def unpack(args: object) -> tuple[list[Any], dict[str, Any]]:
    """A job's decoded arguments as positional and keyword ones: an array, an object, or an object with both."""
    if isinstance(args, list):
        return args, {}
    named = dict(cast("dict[str, Any]", args))
    return named.pop(POSITIONAL, []), named


def _explain(value: object, name: str) -> str | None:
    return next(_faults(value, name, 0), None)


def _faults(value: object, path: str, depth: int) -> Iterator[str]:
    """Every reason why the value does not survive JSON, each with the path to the culprit."""
    if depth > 200:
        yield f"{path[:60]}… is nested too deeply"
        return
    match value:
        case None | bool() | int():
            pass
        case str():
            if "\0" in value:
                yield f"{path} contains a NUL character, which Postgres can't store"
            elif not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
                yield f"{path} contains a lone surrogate, which is not valid text"
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                yield f"{path} is {value}, which JSON does not have"
        case list():
            for n, item in enumerate(value):
                yield from _faults(item, f"{path}[{n}]", depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    yield f"{path} has the key {key!r}: JSON's keys are text"
                else:
                    yield from _faults(key, f"a key of {path}", depth + 1)
                    yield from _faults(item, f"{path}[{key!r}]", depth + 1)
        case tuple():
            yield f"{path} is a tuple, which would come out as a list: pass a list"
        case _:
            yield f"{path} is of type {type(value).__name__}, which JSON does not have"
