"""JSON for arguments and results, which must decode to exactly the value that was encoded.

msgspec is fast and lenient: it turns NaN into null, sets into lists, bytes into base64 and int keys into text. Here a
value is encoded only if decoding returns the same value, so a job never sees a changed argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate

import msgspec

NUL = b"\\u0000"  # JSON that contains this may have text with a NUL character.

MOST_LEVELS = 500  # Parsers differ in how deeply JSON may be nested; Python's takes a thousand levels.

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()
_reader = msgspec.json.Decoder(msgspec.Raw)


class NotJson(ValueError):
    """A value that JSON can't carry unchanged. The message names the place and the reason."""


def encode(value: object, name: str = "value") -> bytes:
    """The value as JSON; NotJson if it would decode to another value."""
    try:
        data = _encoder.encode(value)
        faithful = _decoder.decode(data) == value
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotJson(explain(value, name) or f"{name} can't be written as JSON: {error}") from None
    if not faithful or NUL in data:
        reason = explain(value, name)
        if reason or not faithful:
            raise NotJson(reason or f"{name} would decode to another value")
    return data


def decode(data: bytes | str) -> object:
    return _decoder.decode(data)


def check(data: bytes) -> None:
    """Raise NotJson unless the bytes, which a job sent, are JSON."""
    try:
        _reader.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise NotJson(f"it is not JSON: {error}") from None


def readable(data: bytes) -> msgspec.Raw:
    """This JSON, or a JSON text that holds it, if common parsers refuse it: clients can store JSON that is nested
    thousands of levels deep, or has numbers that no double holds."""
    found = decode_or_text(data)
    return msgspec.Raw(_encoder.encode(found) if isinstance(found, str) else data)


def decode_or_text(data: bytes) -> object:
    """The value of this JSON, or the JSON itself as text, if common parsers refuse it."""
    try:
        if data.count(b"[") + data.count(b"{") < MOST_LEVELS or _levels(data) < MOST_LEVELS:
            return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    return data.decode(errors="replace")


def _levels(data: bytes) -> int:
    """How deeply this JSON is nested."""
    brackets = _STRING.sub(b"", data).translate(None, delete=_NO_BRACKETS)
    return max(accumulate(1 if one in b"[{" else -1 for one in brackets), default=0)


def in_words(error: Exception, path: str) -> str:
    """What is wrong with the value that is called `path`: "argument n[0]: expected int, got str"."""
    if not isinstance(error, msgspec.DecodeError):
        known = isinstance(error, TypeError | ValueError | ArithmeticError | RecursionError)
        return f"{path}: {error}" if known else f"{path}: {type(error).__name__}: {error}"
    text, _, place = str(error).replace("`", "").partition(" - at ")
    place = place.replace("$", path, 1) or path
    if place.startswith("key in "):
        place = f"a key of {place.removeprefix('key in ')}"
    first, _, rest = text.partition(" ")  # A word of msgspec, or the name of a model's field and a colon.
    return f"{place}: {first.lower() if first.isalpha() else first} {rest}"


def explain(value: object, name: str, *, encodable: Callable[[object], bool] | None = None) -> str | None:
    """Why the value is not plain JSON that Postgres can store, or None. With `encodable`, it says which types are."""
    return next(_faults(value, name, encodable, 0), None)


def _faults(value: object, path: str, encodable: Callable[[object], bool] | None, depth: int) -> Iterator[str]:
    """Every reason why JSON would change the value, each with the path to the part that changes."""
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
                yield from _faults(item, f"{path}[{n}]", encodable, depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str) and encodable is None:
                    yield f"{path} has the key {key!r}: JSON's keys are text"
                else:
                    yield from _faults(key, f"a key of {path}", encodable, depth + 1)
                    yield from _faults(item, f"{path}[{key!r}]", encodable, depth + 1)
        case _ if encodable is not None and encodable(value):
            pass
        case tuple() if encodable is None:
            yield f"{path} is a tuple, which would come out as a list: pass a list"
        case _:
            yield f"{path} is of type {type(value).__name__}, which JSON does not have"
