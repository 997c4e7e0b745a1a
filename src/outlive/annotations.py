"""One annotation: how its values become JSON, how they come back, and which values it refuses.

msgspec encodes and decodes, and pydantic does so for its models, if the app has imported it. An annotation that neither
of them understands is not used: the value must then be plain JSON (`wire`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from types import SimpleNamespace, UnionType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect as types

from outlive import wire
from outlive.errors import BadArguments

_SCALARS = {type(None), bool, int, float, str, bytes, date, datetime, timedelta, UUID}
"""Equal values of one of these classes are the same."""
_EXACTLY: dict[type, Callable[[Any], object]] = {
    Decimal: Decimal.as_tuple,
    datetime: lambda one: (one.replace(tzinfo=None, fold=0), one.utcoffset()),
    time: lambda one: (one.replace(tzinfo=None), one.utcoffset(), one.tzinfo is None),
}
"""What two values of one of these classes have in common if they are the same."""
_PLAIN = (types.AnyType, types.NoneType, types.BoolType, types.IntType, types.FloatType, types.StrType,
          types.LiteralType, types.UnionType, types.ListType, types.DictType, types.TypedDictType)  # fmt: skip
_DEEP = (types.AnyType, types.CustomType, types.UnionType, types.CollectionType, types.TupleType, types.NamedTupleType,
         types.DictType, types.DataclassType, types.TypedDictType, types.StructType)  # fmt: skip
"""Types that have parts, or that may hold anything."""


class Form(msgspec.Struct, frozen=True):
    """How the values of one annotation become JSON and come back."""

    hint: Any = Any
    type: types.Type = msgspec.field(default_factory=types.AnyType)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
    plain: bool = True
    """The value is plain JSON: there is no annotation, it says nothing, or it is not used."""
    unused: str = ""
    """Why the annotation is not used."""
    missing: bool = False
    """It is not used because it names something that is not defined, perhaps not yet."""
    closely: bool = False
    """Values may be equal and yet differ, so they are compared part by part."""
    sort: bool = False
    """It has sets that msgspec does not sort, or not always in the same way."""
    closed: bool = False
    """It has dataclasses or TypedDicts: msgspec ignores keys that they don't have, and these are refused."""

    def encode(self, value: object, path: str) -> bytes:
        """The value as JSON. NotJson says why it would not come back as it is; `path` is its name in that sentence."""
        if self.plain:
            try:
                return wire.encode(value, path)
            except wire.NotJson as error:
                raise wire.NotJson(f"{error} ({self.unused})" if self.unused else str(error)) from None
        try:
            data = encode(value, sort=self.sort)
            decoded = self.decoder.decode(data)
            changed = change(value, decoded) if self.closely or decoded != value else None
            fault = None if changed is None else _described(*changed, path)
            if fault is None and wire.NUL in data:
                fault = wire.explain(wire.decode(data), path)
            if fault is None:
                return data
        except Exception as error:  # A class of the user's own may raise anything.
            fault = wire.in_words(error, path)
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
        if self.closed and not encodes_to(data, value, sort=self.sort):
            _refuse_unknown_keys(self.type, wire.decode(data), path)
        return value

    def same(self, value: object, decoded: object) -> bool:
        return change(value, decoded) is None if self.closely else bool(value == decoded)


PLAIN = Form()


def form_of(annotation: object, function: Callable[..., Any], default: object = inspect.Parameter.empty) -> Form:
    """The form of one parameter of a function, or of its result."""
    if annotation is inspect.Parameter.empty:
        return PLAIN
    try:
        hint = _resolved(annotation, function)
        if hint in (Any, object, type(None)):
            return PLAIN
        if default is None:
            hint = typing.Optional[hint]  # noqa: UP045  # `|` fails for some of the things that annotations can be.
        if hint in (float, float | None):
            hint = hint | int  # An int stays one: as a float, it could be rounded.
        info = types.type_info(hint)
        parts = _parts(info)
        own = {part.cls for part in parts if isinstance(part, types.CustomType) and part.cls is not object}
        if unknown := next((one for one in own if not _is_model(one)), None):
            return Form(unused=f"its annotation is not used: JSON has no form for {unknown.__name__}")
        decoder = msgspec.json.Decoder(hint, dec_hook=_from_json if own else None)
    except Exception as error:  # An annotation is the user's code, and may be anything.
        unused = f"its annotation is not used: {str(error).partition(' - type ')[0]}"
        return Form(unused=unused, missing=isinstance(error, NameError))
    if _may_have_more_keys(parts):
        return PLAIN
    return Form(
        hint,
        info,
        decoder,
        plain=False,
        closely=any(map(_equality_hides, parts)),
        sort=any(
            isinstance(part, types.SetType | types.FrozenSetType) and isinstance(part.item_type, _DEEP)
            for part in parts
        ),
        closed=any(isinstance(part, types.DataclassType | types.TypedDictType) for part in parts),
    )


def decoders(forms: Mapping[str, Form], required: set[str]) -> tuple[msgspec.json.Decoder[Any], ...]:
    """Two decoders for an object with these fields: to an object that refuses unknown keys, and faster, to a dict.

    In the object, fields that are not required are UNSET if they are missing.
    """
    defaults = {name: msgspec.NODEFAULT if name in required else msgspec.UNSET for name in forms}
    fields = [(name, form.hint, msgspec.field(default=defaults[name])) for name, form in forms.items()]
    struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
    hints: Any = {name: hint for name, hint, _ in fields}
    typed_dict = typing.TypedDict("Arguments", hints, total=False)  # type: ignore[misc]
    has_models = any(form.decoder.dec_hook for form in forms.values())
    return tuple(msgspec.json.Decoder(one, dec_hook=_from_json if has_models else None) for one in (struct, typed_dict))


def _resolved(annotation: object, function: Callable[..., Any]) -> Any:
    """The annotation itself where its text or a part of it is quoted. `typing.no_type_check` stands for none."""
    holder = SimpleNamespace(
        __annotations__={"it": annotation}, __no_type_check__=getattr(function, "__no_type_check__", False)
    )
    return typing.get_type_hints(holder, globalns=namespace(function), include_extras=True).get("it", Any)


def namespace(function: Callable[..., Any]) -> Any:
    """Where the names in the annotations of a function are looked up."""
    return getattr(inspect.unwrap(function), "__globals__", {})


def encode(value: object, *, sort: bool = False) -> bytes:
    """The value as JSON. Keys and sets are sorted, so that equal values have the same bytes.

    msgspec sorts by `<`, which is not enough for all sets: with `sort`, they are sorted by their JSON.
    """
    if not sort:
        try:
            return encode_simple(value)
        except TypeError:
            pass  # It can't sort keys that are not text, or items that have no `<`.
    return encode_simple(msgspec.to_builtins(_ordered(value), str_keys=True, enc_hook=_to_json))


def encodes_to(data: bytes | msgspec.Raw, value: object, *, sort: bool) -> bool:
    """Whether the value has exactly this JSON. Then nothing got lost when it was decoded: most values are like that."""
    with contextlib.suppress(Exception):
        return encode(value, sort=sort) == data
    return False


def _ordered(value: Any) -> Any:
    """The value with sorted lists in place of its sets. It is the same object if it has none."""
    match value:
        case set() | frozenset() if value:
            return sorted(map(_ordered, value), key=encode)
        case list() | tuple():
            items = [*map(_ordered, value)]
            return value if all(map(operator.is_, items, value)) else items
        case dict():
            parts = {key: _ordered(item) for key, item in value.items()}
            return value if all(map(operator.is_, parts.values(), value.values())) else parts
    kind: Any = type(value)
    old = {name: getattr(value, name) for name in _fields(kind) if hasattr(value, name)}
    new = {name: one for name, part in old.items() if (one := _ordered(part)) is not part}
    if not new:
        return value
    twin: Any = copy.copy(value)
    set_field = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, one in new.items():
        set_field(twin, name, one)
    return twin


def change(value: Any, decoded: Any) -> tuple[str, Any, Any] | None:
    """Where a value differs from what it is decoded to: the path to that part, and the two parts. None if nowhere.

    It looks into containers and objects: a class may define its own equality, or none. A Decimal is no float, even if
    they are equal. A moment in the hour that a clock is set back by definition equals no moment with another time zone.
    """
    kind: Any = type(value)
    if (same_kind := kind is type(decoded)) and kind in _SCALARS and value == decoded:
        return None
    if same_kind and (fields_of := _simple_fields(kind)) and fields_of(value) == fields_of(decoded):
        return None
    names = _fields(kind)
    parts: Iterable[tuple[object, Any, Any]] = ()
    match value, decoded:
        case (list(), list()) | (tuple(), tuple()) if len(value) == len(decoded):
            same, parts = True, zip(names or count(), value, decoded, strict=False)
        case (set() | frozenset(), set() | frozenset()) if len(value) == len(decoded):
            same, parts = True, zip(count(), sorted(value, key=encode), sorted(decoded, key=encode), strict=False)
        case dict(), dict() if value.keys() == decoded.keys():
            keys = {key: key for key in decoded}
            same = not any(change(key, keys[key]) for key in value)
            parts = ((key, item, decoded[key]) for key, item in value.items())
        case _ if names:
            same = same_kind
            parts = ((name, getattr(value, name, None), getattr(decoded, name, None)) for name in names if same)
        case _ if same_kind and kind in _EXACTLY:
            same = _EXACTLY[kind](value) == _EXACTLY[kind](decoded)
        case _:
            same = value == decoded and not isinstance(decoded, Decimal)
    if not same:
        return "", value, decoded
    for label, one, other in parts:
        if found := change(one, other):
            return (f".{label}" if names else f"[{label!r}]") + found[0], *found[1:]
    return None


@functools.lru_cache(maxsize=1000)
def _fields(kind: Any) -> tuple[str, ...]:
    """The names of what an object of this class is made of: none unless it is of a class with declared fields."""
    if issubclass(kind, tuple | msgspec.Struct):
        return tuple(getattr(kind, "__struct_fields__", getattr(kind, "_fields", ())))
    if dataclasses.is_dataclass(kind):
        return tuple(one.name for one in dataclasses.fields(kind))
    return (*kind.model_fields, "__pydantic_extra__", "__pydantic_private__") if _is_model(kind) else ()


@functools.lru_cache(maxsize=1000)
def _simple_fields(kind: Any) -> Callable[[Any], Any] | None:
    """Gets all fields of an object of this class at once. None: equality may hide that they differ."""
    if _fields(kind) and not _is_model(kind) and not getattr(kind, "__parameters__", ()):  # Box may be Box[Decimal].
        with contextlib.suppress(Exception):  # msgspec may not take what a dataclass in a model is made of.
            info = types.type_info(kind)
            if not any(_equality_hides(part) for part in _parts(info) if part is not info):
                return operator.attrgetter(*_fields(kind))
    return None


def _described(below: str, value: object, decoded: object, path: str) -> str:
    """What `change` has found in the value that is called `path`."""
    path += below
    if decoded == wire.decode(encode(value)) and (fault := wire.explain(value, path)):
        return fault  # It is decoded as plain JSON.
    would = f"{path} is {value!r:.80} and would come out as {decoded!r:.80}"
    return _wrong_class(value, type(decoded), path) or would


def _is_encodable(value: object) -> bool:
    with contextlib.suppress(Exception):
        return bool(encode(value))
    return False


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


def _refuse_unknown_keys(part: types.Type, plain: Any, path: str) -> None:
    """Raise BadArguments if this JSON has a key that its dataclass or TypedDict does not have."""
    inner: Iterable[tuple[types.Type, Any, str]] = ()
    match part, plain:
        case types.UnionType(), _:
            inner = ((one, plain, path) for one in part.types)
        case types.CollectionType(item_type=item), list() if isinstance(item, _DEEP):
            inner = ((item, one, f"{path}[{n}]") for n, one in enumerate(plain))
        case types.TupleType(item_types=items), list():
            inner = ((item, one, f"{path}[{n}]") for n, (item, one) in enumerate(zip(items, plain, strict=False)))
        case types.NamedTupleType(fields=fields), list():
            inner = ((field.type, one, f"{path}.{field.name}") for field, one in zip(fields, plain, strict=False))
        case types.DictType(value_type=item), dict() if isinstance(item, _DEEP):
            inner = ((item, one, f"{path}[{key!r}]") for key, one in plain.items())
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


def _parts(info: types.Type) -> list[types.Type]:
    """A type and all types that it is made of. A type may be a part of itself."""
    found: dict[int, types.Type | types.Field] = {}
    unseen: list[Any] = [info]
    while unseen:
        one = unseen.pop()
        if isinstance(one, tuple):
            unseen += one
        elif isinstance(one, types.Type | types.Field) and id(one) not in found:
            found[id(one)] = one
            unseen += msgspec.structs.astuple(one)
    return [one for one in found.values() if isinstance(one, types.Type)]


def _may_have_more_keys(parts: list[types.Type]) -> bool:
    """Whether it is made of TypedDicts and plain JSON. A TypedDict may have more keys, which decoding would drop."""
    plain = all(isinstance(part, _PLAIN) or getattr(part, "cls", None) is object for part in parts)
    keys = [part.key_type for part in parts if isinstance(part, types.DictType)]
    has_any = any(isinstance(part, types.TypedDictType) for part in parts)
    return has_any and plain and all(isinstance(key, types.StrType) for key in keys)


def _equality_hides(part: types.Type) -> bool:
    """Whether values of this type may be equal and yet differ: a class may define its own equality, or none.

    A Decimal equals some floats and ints. A time equals one without a time zone if the offset of its own zone depends
    on the day.
    """
    kind: Any = getattr(part, "cls", None)
    match part:
        case types.StructType() | types.NamedTupleType():
            return kind.__eq__ not in (msgspec.Struct.__eq__, tuple.__eq__)
        case types.CustomType():
            return kind is not object
    return isinstance(part, types.DecimalType | types.TimeType | types.DataclassType)


# Models of pydantic, version 2. An app that has one has imported pydantic; outlive never does.


def _is_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and hasattr(kind, "model_validate") and issubclass(kind, pydantic.BaseModel)


def _to_json(value: Any) -> object:
    if not _is_model(type(value)):
        raise TypeError(f"JSON does not have the type {type(value).__name__}")
    whole, plain = _dumped(value), _dumped(value, exclude_unset=True)
    with contextlib.suppress(Exception):
        if plain == whole or _dumped(_from_json(type(value), plain)) == whole:
            return plain  # What is not set stays so: `model_fields_set` tells what to update.
    return whole  # A default that was changed in place, or that differs each time.


def _dumped(model: Any, *, exclude_unset: bool = False) -> object:
    return _ordered(model).model_dump(
        mode="json", by_alias=True, round_trip=True, warnings=False, exclude_unset=exclude_unset
    )


def _from_json(kind: Any, value: object) -> object:
    if not _is_model(kind):
        return value
    try:
        return kind.model_validate_json(encode_simple(value))  # From JSON, a strict model too takes text for a date.
    except ValueError as error:
        found = [(".".join(map(str, one["loc"])), one["msg"]) for one in getattr(error, "errors", list)()]
        reasons = "; ".join(f"{place}: {reason}" if place else reason for place, reason in found)
        raise ValueError(reasons or str(error)) from None


encode_simple = msgspec.json.Encoder(order="sorted", enc_hook=_to_json).encode
"""The same as `encode`, and TypeError for values that need more sorting than msgspec does."""
