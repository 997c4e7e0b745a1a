"""How a value travels as JSON and comes back as its annotation says: a datetime, a Decimal, a dataclass, a model.

`Form` is one annotation. msgspec encodes and decodes, and pydantic does so for its models, if the app has imported it.
An annotation that neither of them understands is not used: the value must then be plain JSON (`wire`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, time
from decimal import Decimal
from types import SimpleNamespace, UnionType
from typing import Any

import msgspec
from msgspec import inspect as types

from outlive import wire
from outlive.errors import BadArguments
from outlive.parts import is_anything, is_open, is_sortable, parts_of, places

UNFIT = (TypeError, ValueError, ArithmeticError, RecursionError)
"""What encoding, decoding and comparing raise. Comparing a signalling NaN is an ArithmeticError."""

_SCALARS = {type(None), bool, int, float, str, bytes}
_CLOSED = (types.DataclassType, types.TypedDictType)


class Form(msgspec.Struct, frozen=True):
    """How the values of one annotation become JSON and come back."""

    hint: Any = Any
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
    plain: bool = True
    """The value is plain JSON: there is no annotation, it says nothing, or it is not used."""
    unused: str = ""
    """Why the annotation is not used."""
    missing: Callable[[], bool] | None = None
    """Whether a name that was missing when the form was made still is. It may come later in its module."""
    closely: bool = False
    """Values may be equal and yet differ, so they are compared part by part."""
    has_model: bool = False
    sort: bool = False
    """It has sets that msgspec does not sort, or not always in the same way."""
    closed: bool = False
    """It has dataclasses or TypedDicts: msgspec ignores keys that they don't have."""
    type: types.Type | None = None

    def decode(self, data: bytes | msgspec.Raw, path: str) -> Any:
        """The value that this JSON stands for. DecodeError if it does not fit, BadArguments if a key would get lost."""
        value = self.decoder.decode(data)
        if self.closed and (unknown := self.unknown_key(wire.decode(data), value, path)):
            raise BadArguments(unknown)
        return value

    def unknown_key(self, plain: object, decoded: object, path: str) -> str | None:
        """Where this JSON has a key that its dataclass or TypedDict does not have, or None."""
        with contextlib.suppress(Exception):
            if encode_simple(decoded) == encode_simple(plain):
                return None  # As it is with most. To look at each key is slow.
        for part, value, place in places(self.type, plain, path):
            if isinstance(part, _CLOSED) and isinstance(value, dict):
                more = value.keys() - {field.encode_name for field in part.fields}
                for key in sorted(more)[:1]:
                    return f"{place} has the key {key!r}, which {part.cls.__name__} does not have"
        return None

    def fault(self, value: object, path: str) -> str | None:
        """Why the value can't travel as it is, or None. `path` is its name in that sentence."""
        if self.plain:
            try:
                wire.encode(value, path)
            except wire.NotJson as error:
                return f"{error} ({self.unused})" if self.unused else str(error)
            return None
        try:
            data = encode(value)
            decoded = self.decoder.decode(data)
            fault = None if not self.closely and decoded == value else change(value, decoded, path)
        except msgspec.DecodeError as error:
            fault = in_words(error, path)
        except UNFIT as error:
            fault = f"{path}: {error}"
        except Exception as error:  # A class of the user's own may raise anything.
            fault = f"{path}: {type(error).__name__}: {error}"
        if fault is None:
            return wire.explain(wire.decode(data), path) if wire.NUL in data else None
        of_anything = (place for place in places(self.type, value, path) if is_anything(place[0]))
        fault = _first(wire.explain(one, place) for _, one, place in of_anything) or fault
        if (wanted := _class_in(self.hint)) is not None:
            fault = _mismatch(value, wanted, path) or fault
        return wire.explain(value, path, any_type=True) or fault


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
        parts = list(parts_of(info, set()))
        own = {part.cls for part in parts if isinstance(part, types.CustomType) and part.cls is not object}
        if unknown := next((one for one in own if not _is_model(one)), None):
            return Form(unused=f"its annotation is not used: JSON has no form for {unknown.__name__}")
        decoder = msgspec.json.Decoder(hint, dec_hook=_from_json if own else None)
    except Exception as error:  # An annotation is the user's code, and may be anything.
        missing = _missing(error) if isinstance(error, NameError) else None
        return Form(unused=f"its annotation is not used: {str(error).partition(' - type ')[0]}", missing=missing)
    if is_open(parts):
        return PLAIN
    closed = any(isinstance(part, _CLOSED) for part in parts)
    closely = any(map(_equality_hides, parts))
    sort = not all(map(is_sortable, parts))
    return Form(hint, decoder, plain=False, closely=closely, sort=sort, has_model=bool(own), closed=closed, type=info)


def struct_decoder(fields: Mapping[str, Form], required: set[str]) -> msgspec.json.Decoder[Any]:
    """A decoder for an object with these fields. Those that are not required are UNSET if they are missing."""
    struct = msgspec.defstruct(
        "Arguments",
        [
            (name, form.hint, msgspec.field(default=msgspec.NODEFAULT if name in required else msgspec.UNSET))
            for name, form in fields.items()
        ],
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
    )
    return _decoder(struct, fields)


def dict_decoder(fields: Mapping[str, Form]) -> msgspec.json.Decoder[Any]:
    """A decoder for an object that may have these fields."""
    hints = {name: form.hint for name, form in fields.items()}
    return _decoder(typing.TypedDict("Arguments", hints, total=False), fields)  # type: ignore[operator]


def _decoder(hint: Any, fields: Mapping[str, Form]) -> msgspec.json.Decoder[Any]:
    has_model = any(form.has_model for form in fields.values())
    return msgspec.json.Decoder(hint, dec_hook=_from_json if has_model else None)


def encode(value: object, *, sort: bool = False) -> bytes:
    """The value as JSON. Keys and sets are sorted, so that equal values have the same bytes.

    msgspec sorts by `<`, which is not enough for all sets: with `sort`, they are sorted by their JSON.
    """
    if not sort:
        try:
            return encode_simple(value)
        except TypeError:
            pass  # It can't sort keys that are not text, or items that have no `<`.
    return encode_simple(_sorted(value, msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json)))


def in_words(error: msgspec.DecodeError, path: str) -> str:
    """What msgspec found wrong with the value that is called `path`: "argument n[0]: expected int, got str"."""
    text, _, place = str(error).replace("`", "").partition(" - at ")
    place = place.replace("$", path, 1) or path
    if place.startswith("key in "):
        place = f"a key of {place.removeprefix('key in ')}"
    first, _, rest = text.partition(" ")  # A word of msgspec, or the name of a model's field and a colon.
    return f"{place}: {first.lower() if first.isalpha() else first} {rest}"


def _resolved(annotation: object, function: Callable[..., Any]) -> Any:
    """The annotation itself where its text or a part of it is quoted. `typing.no_type_check` stands for none."""
    holder = SimpleNamespace(
        __annotations__={"it": annotation}, __no_type_check__=getattr(function, "__no_type_check__", False)
    )
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return typing.get_type_hints(holder, globalns=names, include_extras=True).get("it", Any)


def _missing(error: NameError) -> Callable[[], bool]:
    """Whether the name is still missing in the namespaces in which it was looked up."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    spaces = (trace.tb_frame.f_globals, trace.tb_frame.f_locals) if trace is not None else ()
    name = error.name
    return lambda: not any(name in space for space in spaces)


def _sorted(value: Any, plain: Any) -> Any:
    """The JSON of a value, with the lists sorted that stand for its sets."""
    match value, plain:
        case ((set() | frozenset()), list()):
            return sorted(map(_sorted, value, plain), key=encode_simple)
        case ((list() | tuple()), list()) if len(value) == len(plain):
            return list(map(_sorted, value, plain))
        case dict(), dict() if len(value) == len(plain):
            return {key: _sorted(item, plain[key]) for key, item in zip(plain, value.values(), strict=True)}
        case msgspec.Struct(__struct_fields__=names), list():  # It may begin with a tag.
            items = [getattr(value, name) for name in names]
            begin = len(plain) - len(items)
            return plain[:begin] + list(map(_sorted, items, plain[begin:]))
        case _ if getattr(value, "__pydantic_root_model__", False):
            return _sorted(value.root, plain)
        case _, dict():
            found = {key: getattr(value, name) for name, key in _keys(value) if key in plain}
            return plain | {key: _sorted(item, plain[key]) for key, item in found.items()}
    return plain


def _keys(value: Any) -> Iterable[tuple[str, str]]:
    """The fields of an object, with their names in JSON."""
    if isinstance(value, msgspec.Struct):
        return zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    if _is_model(type(value)):
        fields = type(value).model_fields.items()
        return [(name, field.serialization_alias or field.alias or name) for name, field in fields]
    return [(name, name) for name in _fields(value)]


def change(value: Any, decoded: Any, path: str) -> str | None:
    """Where a value differs from what it is decoded to, or None.

    It looks into containers and objects: a class may define its own equality, or none. A Decimal is no float, even if
    they are equal. A moment in the hour that a clock is set back by definition equals no moment with another time zone.
    """
    if type(value) is type(decoded) and type(value) in _SCALARS and value == decoded:
        return None  # As most parts of most values.
    match value, decoded:
        case (list(), list()) | (tuple(), tuple()) if len(value) == len(decoded):
            return _first(change(item, decoded[n], f"{path}[{n}]") for n, item in enumerate(value))
        case (set() | frozenset(), set() | frozenset()) if len(value) == len(decoded):
            pairs = zip(sorted(value, key=encode), sorted(decoded, key=encode), strict=True)
            return _first(change(one, other, f"an item of {path}") for one, other in pairs)
        case dict(), dict() if value.keys() == decoded.keys():
            keys = {key: key for key in decoded}
            fault = _first(change(key, keys[key], f"a key of {path}") for key in value)
            return fault or _first(change(item, decoded[key], f"{path}[{key!r}]") for key, item in value.items())
        case datetime(tzinfo=one), datetime(tzinfo=other) if one and other and value.utcoffset() == decoded.utcoffset():
            if value.replace(tzinfo=None) == decoded.replace(tzinfo=None):
                return None
        case Decimal(), Decimal():
            if value.as_tuple() == decoded.as_tuple():
                return None
        case time(), time() if (value.tzinfo is None) != (decoded.tzinfo is None):
            pass
        case _ if names := _fields(value):
            if type(value) is type(decoded):
                both = ((name, getattr(value, name, None), getattr(decoded, name, None)) for name in names)
                return _first(change(one, other, f"{path}.{name}") for name, one, other in both)
        case _ if value == decoded and not isinstance(decoded, Decimal):
            return None
    would = f"{path} is {value!r:.80} and would come out as {decoded!r:.80}"
    return _mismatch(value, type(decoded), path) or would


def _class_in(hint: Any) -> type | None:
    """The class of which a value must be, if the annotation is one, or one and None."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        some = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = some[0] if len(some) == 1 else None
    return hint if inspect.isclass(hint) and not typing.is_typeddict(hint) else None


def _mismatch(value: object, wanted: type, path: str) -> str | None:
    """That the value is of another type. An int is as good as a float."""
    kind = type(value)
    if kind is wanted or (kind is int and wanted is float):
        return None
    return f"{path}: expected {wanted.__name__}, got {kind.__name__}"


def _first(faults: Iterator[str | None]) -> str | None:
    return next((fault for fault in faults if fault), None)


def _fields(value: Any) -> list[str]:
    """The names of what an object is made of. It is empty for all that is no dataclass, Struct or model."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [one.name for one in dataclasses.fields(value)]
    if _is_model(type(value)):
        return [*type(value).model_fields, "__pydantic_extra__", "__pydantic_private__"]
    return []


def _equality_hides(part: object) -> bool:
    """Whether values of this type may be equal and yet differ. A Decimal equals some floats and ints.

    A time equals one without a time zone if the offset of its own zone depends on the day.
    """
    match part:
        case types.DecimalType() | types.TimeType():
            return True
        case types.StructType(cls=kind):
            return kind.__eq__ is not msgspec.Struct.__eq__
        case types.NamedTupleType(cls=kind):
            return "__eq__" in vars(kind)
        case types.DataclassType(cls=kind):
            code = getattr(kind.__eq__, "__code__", None)
            made_by_dataclass = getattr(code, "co_qualname", "").startswith("__create_fn__")
            return not made_by_dataclass or not all(field.compare for field in dataclasses.fields(kind))
        case types.CustomType(cls=kind):
            return _is_model(kind)  # It may have any of these inside.
    return False


# Models of pydantic, version 2. An app that has one has imported pydantic; outlive never does.


def _is_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and hasattr(kind, "model_validate") and issubclass(kind, pydantic.BaseModel)


def _to_json(value: Any) -> object:
    if not _is_model(type(value)):
        raise TypeError(f"JSON does not have the type {type(value).__name__}")

    def dump(*, exclude_unset: bool = False) -> object:
        plain = value.model_dump(
            mode="json", by_alias=True, round_trip=True, warnings=False, exclude_unset=exclude_unset
        )
        return _sorted(value, plain)

    with contextlib.suppress(Exception):
        plain = dump(exclude_unset=True)  # What is not set stays so: `model_fields_set` tells what to update.
        if change(value, _from_json(type(value), plain), "") is None:
            return plain
    return dump()  # A default that was changed in place, or that differs each time.


def _from_json(kind: Any, value: object) -> object:
    if not _is_model(kind):
        return value
    try:
        return kind.model_validate_json(encode_simple(value))  # From JSON, a strict model too takes text for a date.
    except ValueError as error:
        found = [(".".join(map(str, one["loc"])), one["msg"]) for one in getattr(error, "errors", list)()]
        told = "; ".join(f"{place}: {said}" if place else said for place, said in found)
        raise ValueError(told or str(error)) from None


encode_simple = msgspec.json.Encoder(order="sorted", enc_hook=_to_json).encode
"""The same as `encode`, and TypeError for values that need more sorting than msgspec does."""
