"""One annotation: how its values become JSON, how they come back, and which values it refuses.

msgspec encodes and decodes, and pydantic does so for its own types, if the app has imported it (`encoding`). An
annotation that neither of them understands is not used: the value must then be plain JSON (`wire`).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from datetime import datetime, time
from decimal import Decimal
from itertools import count
from types import SimpleNamespace, UnionType
from typing import Any

import msgspec
from msgspec import inspect as types

from outlive import encoding, wire
from outlive.encoding import ByPydantic, encode, fields_of, from_json
from outlive.errors import BadArguments

_EXACTLY: dict[type, Callable[[Any], object]] = {
    Decimal: Decimal.as_tuple,
    datetime: lambda one: (one.replace(tzinfo=None, fold=0), one.utcoffset()),
    time: lambda one: (one.replace(tzinfo=None), one.utcoffset(), one.tzinfo is None),
}
"""What two values of one of these classes have in common if they are the same."""
_CLOSELY = (types.DecimalType, types.TimeType, types.DataclassType, types.StructType, types.NamedTupleType)
"""Values of these may be equal and yet differ: a Decimal equals some floats, and a class may define its equality."""
_PLAIN = (types.AnyType, types.NoneType, types.BoolType, types.IntType, types.FloatType, types.StrType,
          types.LiteralType, types.UnionType, types.ListType, types.DictType, types.TypedDictType)  # fmt: skip
_SETS = (types.SetType, types.FrozenSetType)


class Form(msgspec.Struct, frozen=True):
    """How the values of one annotation become JSON and come back."""

    hint: Any = Any
    type: types.Type | None = None  # None: plain JSON, because the annotation is missing, says nothing or is not used.
    decoder: msgspec.json.Decoder[Any] | ByPydantic = msgspec.json.Decoder()
    unused: str = ""  # Why the annotation is not used.
    missing: bool = False  # It is not used because it names something that is not defined, perhaps not yet.
    closely: bool = False  # Values may be equal and yet differ, so they are compared part by part.
    sort: bool = False
    """It has sets of other things than text, which msgspec does not always write in the same order; or pydantic writes
    it."""
    closed: bool = False
    """It has dataclasses or TypedDicts: msgspec ignores keys that they don't have, and these are refused."""

    def encode(self, value: object, path: str) -> bytes:
        """The value as JSON. NotJson says why it would not come back as it is; `path` is its name in that sentence."""
        if self.type is None:
            try:
                return wire.encode(value, path)
            except wire.NotJson as error:
                advice = f" ({self.unused})" if self.unused else _annotating(value, path)
                raise wire.NotJson(f"{error}{advice}") from None
        try:
            by = self.decoder
            data = by.encode(value) if isinstance(by, ByPydantic) else encode(value, sort=self.sort)
            decoded = by.decode(data)
            changed = None if self.same(value, decoded) else change(value, decoded)
            fault = _described(*changed, path) if changed else None
            if fault is None and wire.NUL in data:
                fault = wire.explain(wire.decode(data), path)
            if fault is None:
                return data
        except Exception as error:  # A class of the user's own may raise anything.
            fault = wire.in_words(error, path)
        if isinstance(self.decoder, ByPydantic):
            raise wire.NotJson(fault)
        plainer = _wrong_class(value, self.hint, path) or wire.explain(value, path, encodable=_is_encodable)
        raise wire.NotJson(plainer or fault)

    def decode(self, data: bytes | msgspec.Raw, path: str) -> Any:
        """The value that this JSON stands for. BadArguments says why it does not fit, or which key would get lost."""
        try:
            value = self.decoder.decode(data)
        except MemoryError:
            raise
        except Exception as error:  # A class of the user's own may raise anything.
            raise BadArguments(wire.in_words(error, path)) from error
        if self.closed:
            _refuse_unknown_keys(self.type, wire.decode(data), path)
        return value

    def same(self, value: object, decoded: object) -> bool:
        return change(value, decoded) is None if self.closely else bool(value == decoded)


PLAIN = Form()


def _annotating(value: object, path: str) -> str:
    """The advice to annotate a parameter, or the result, with the class of the value. Empty if that would not help."""
    kind = type(value)
    try:
        form = form_of(kind, _annotating)
        if form.type is not None and form.encode(value, path):
            name = path.removeprefix("argument ").partition("[")[0]
            return f"; annotate {name}: {kind.__name__}" if name != path else f"; annotate it: -> {kind.__name__}"
    except Exception:  # A class of the user's own may raise anything.
        pass
    return ""


def form_of(annotation: object, function: Callable[..., Any], default: object = inspect.Parameter.empty) -> Form:
    """The form of one parameter of a function, or of its result."""
    if annotation is inspect.Parameter.empty:
        return PLAIN
    try:
        hint = _resolved(annotation, function)
        if hint in (Any, object, type(None), typing.NoReturn, typing.Never):
            return PLAIN
        if default is None:
            hint = typing.Optional[hint]  # noqa: UP045  # `|` fails for some of the things that annotations can be.
        if hint in (float, float | None):
            hint = hint | int  # An int stays one: as a float, it could be rounded.
        of_pydantic = encoding.of_pydantic(hint)
        if not all(map(encoding.is_model, of_pydantic)) and (form := _by_pydantic(hint)) is not None:
            return form
        try:
            return _by_msgspec(hint)
        except TypeError:
            if of_pydantic and (form := _by_pydantic(hint)) is not None:
                return form
            raise
    except Exception as error:  # An annotation is the user's code, and may be anything.
        reason = str(error).partition("\n")[0].partition(" - type ")[0]
        return Form(unused=f"its annotation is not used: {reason}", missing=isinstance(error, NameError))


def _by_pydantic(hint: Any) -> Form | None:
    """The form of an annotation that has types of pydantic. None if pydantic does not understand all of it."""
    try:
        decoder = ByPydantic(hint)
    except sys.modules["pydantic"].PydanticUserError:  # It has a Struct of msgspec, for example.
        return None
    info: types.Type = types.CustomType(object)
    closed = False
    with contextlib.suppress(TypeError):
        info = types.type_info(hint)
        closed = _is_closed(_parts(info))
    return Form(hint, info, decoder, closely=True, sort=True, closed=closed)


def _by_msgspec(hint: Any) -> Form:
    """The form of an annotation that has no types of pydantic, or single models of it."""
    info = types.type_info(hint)
    parts = _parts(info)
    own = [part.cls for part in parts if isinstance(part, types.CustomType)]
    if unknown := next((one for one in own if not encoding.is_model(one)), None):
        raise TypeError(f"JSON has no form for {unknown.__name__}")
    has_typed_dicts = any(isinstance(part, types.TypedDictType) for part in parts)
    key_kinds = {type(part.key_type) for part in parts if isinstance(part, types.DictType)}
    if has_typed_dicts and key_kinds <= {types.StrType} and all(isinstance(part, _PLAIN) for part in parts):
        return PLAIN  # A TypedDict may have more keys, which decoding would drop.
    return Form(
        hint,
        info,
        msgspec.json.Decoder(hint, dec_hook=from_json),
        closely=bool(own) or any(isinstance(part, _CLOSELY) for part in parts),
        sort=any(isinstance(part, _SETS) and not isinstance(part.item_type, types.StrType) for part in parts),
        closed=_is_closed(parts),
    )


def _is_closed(parts: list[types.Type]) -> bool:
    """Whether one is a dataclass or a TypedDict. One of pydantic says itself what becomes of more keys."""
    return any(
        isinstance(one, types.DataclassType | types.TypedDictType) and not hasattr(one.cls, "__pydantic_validator__")
        for one in parts
    )


def encode_alone(value: object, path: str) -> bytes:
    """The value as JSON for a reader whose annotation is not known: it may be a union, which needs all fields."""
    data = form_of(type(value), encode_alone).encode(value, path)
    return encode(encoding.plain(value)) if encoding.is_model(type(value)) else data


def without_objects(value: Any) -> object:
    """The value with JSON in place of each object that has declared fields, for one that is not as annotated. NotJson
    if a part of it would get lost."""
    kind: Any = type(value)
    match value:
        case list():
            return [*map(without_objects, value)]
        case dict():
            return {key: without_objects(item) for key, item in value.items()}
        case _ if isinstance(value, tuple) or not fields_of(kind):
            return value
    try:
        return wire.decode(encode_alone(value, "it"))
    except wire.NotJson:
        form, whole = form_of(kind, without_objects), encoding.plain(value, subclasses=True)
        found = form.type and change(value, form.decoder.decode(msgspec.json.encode(whole)))
        if found and (type(found[1]) is type(found[2]) or not isinstance(found[1], type(found[2]))):
            raise
        return whole  # It can't be annotated, or a part is of a subclass: that has all of its fields.


def _resolved(annotation: object, function: Callable[..., Any]) -> Any:
    """The annotation itself where its text or a part of it is quoted. `typing.no_type_check` stands for none."""
    holder = SimpleNamespace(
        __annotations__={"it": annotation}, __no_type_check__=getattr(function, "__no_type_check__", False)
    )
    return typing.get_type_hints(holder, globalns=namespace(function), include_extras=True).get("it", Any)


def namespace(function: Callable[..., Any]) -> Any:
    """Where the names in the annotations of a function are looked up."""
    return getattr(inspect.unwrap(function), "__globals__", {})


def _parts(info: types.Type) -> list[types.Type]:
    """A type and all types that it is made of, except `object`, which is anything. A type may be a part of itself."""
    found: dict[int, Any] = {}
    unseen: list[Any] = [info]
    while unseen:
        one = unseen.pop()
        if isinstance(one, tuple):
            unseen += one
        elif isinstance(one, types.Type | types.Field) and id(one) not in found:
            found[id(one)] = one
            unseen += msgspec.structs.astuple(one)
    return [one for one in found.values() if isinstance(one, types.Type) and getattr(one, "cls", None) is not object]


def change(value: Any, decoded: Any) -> tuple[str, Any, Any] | None:
    """Where a value differs from what it is decoded to: the path to that part, and the two parts. None if nowhere.

    It looks into containers and objects: a class may define its own equality, or none. A Decimal is no float, even if
    they are equal. A moment in the hour that a clock is set back by definition equals no moment with another time zone.
    """
    kind: Any = type(value)
    same = kind is type(decoded)
    names = fields_of(kind)
    parts: Iterable[tuple[object, Any, Any]] = ()
    match value, decoded:
        case (list(), list()) | (tuple(), tuple()) if len(value) == len(decoded):
            same, parts = True, zip(names or count(), value, decoded, strict=False)
        case (set() | frozenset(), set() | frozenset()) if len(value) == len(decoded):
            same, parts = True, zip(count(), sorted(value, key=encode), sorted(decoded, key=encode), strict=False)
        case (bool(), _) | (_, bool()):
            same = value is decoded  # Pydantic takes it for a number, a number for it, and 3.0 for an int.
        case float(), int():
            same = False
        case dict(), dict() if value.keys() == decoded.keys():
            keys = {key: key for key in decoded}
            same = not any(change(key, keys[key]) for key in value)
            parts = ((key, item, decoded[key]) for key, item in value.items())
        case _ if names:
            parts = ((name, getattr(value, name, None), getattr(decoded, name, None)) for name in names)
        case _ if same and kind in _EXACTLY:
            same = _EXACTLY[kind](value) == _EXACTLY[kind](decoded)
        case _:
            same = value == decoded and not isinstance(decoded, Decimal)
    if not same:
        return "", value, decoded
    for label, one, other in parts:
        if found := change(one, other):
            return (f".{label}" if names else f"[{label!r}]") + found[0], *found[1:]
    return None


def _described(below: str, value: object, decoded: object, path: str) -> str:
    """What `change` has found in the value that is called `path`."""
    path += below
    if decoded == wire.decode(encode(value)) and (fault := wire.explain(value, path)):
        return fault  # It is decoded as plain JSON.
    would = f"{path} is {value!r:.80} and would come out as {decoded!r:.80}"
    return _wrong_class(value, type(decoded), path) or would


def _wrong_class(value: object, hint: Any, path: str) -> str | None:
    """That the value is of another class, if the annotation is a class, or one and None. An int is fine as a float."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        some = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = some[0] if len(some) == 1 else None
    elif (container := typing.get_origin(hint)) in (list, tuple, set, frozenset, dict):
        hint = container
    if not inspect.isclass(hint) or typing.is_typeddict(hint) or type(value) in (hint, int if hint is float else hint):
        return None
    return f"{path}: expected {hint.__name__}, got {type(value).__name__}"


def _is_encodable(value: object) -> bool:
    with contextlib.suppress(Exception):
        return bool(encode(value))
    return False


def _refuse_unknown_keys(part: types.Type | None, plain: Any, path: str) -> None:
    """Raise BadArguments if this JSON has a key that its dataclass or TypedDict does not have."""
    inner: Iterable[tuple[types.Type, Any, str]] = ()
    match part, plain:
        case types.UnionType(), _:
            inner = ((one, plain, path) for one in part.types)
        case types.CollectionType(), list():
            inner = ((part.item_type, one, f"{path}[{n}]") for n, one in enumerate(plain))
        case types.TupleType(), list():
            inner = (
                (kind, one, f"{path}[{n}]") for n, (kind, one) in enumerate(zip(part.item_types, plain, strict=False))
            )
        case types.NamedTupleType(), list():
            inner = ((one.type, given, f"{path}.{one.name}") for one, given in zip(part.fields, plain, strict=False))
        case types.DictType(), dict():
            inner = ((part.value_type, one, f"{path}[{key!r}]") for key, one in plain.items())
        case types.StructType(tag_field=str(name), tag=tag), dict() if plain.get(name) != tag:
            pass  # It is another Struct of a union.
        case ((types.DataclassType() | types.TypedDictType() | types.StructType()), dict()):
            known = {field.encode_name: field.type for field in part.fields}
            unknown = sorted(plain.keys() - known.keys())
            if unknown and not isinstance(part, types.StructType):
                raise BadArguments(f"{path} has the key {unknown[0]!r}, which {part.cls.__name__} does not have")
            inner = ((known[name], one, f"{path}.{name}") for name, one in plain.items() if name in known)
    for one in inner:
        _refuse_unknown_keys(*one)
