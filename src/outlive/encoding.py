"""The bytes of values as annotated: how msgspec writes them, and what pydantic, version 2, does for its own types.

An app that annotates with such a type has imported pydantic; outlive never does.
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
from collections.abc import Callable
from typing import Any

import msgspec


def encode(value: object, *, sort: bool = True) -> bytes:
    """The value as JSON. Keys and sets are sorted, so that equal values have the same bytes. msgspec sorts by `<`,
    which is not enough for all sets: with `sort`, they are sorted by their JSON."""
    if not sort:
        with contextlib.suppress(TypeError):  # It can't sort keys that are not text, or items that have no `<`.
            return encode_simple(value)
    return encode_simple(msgspec.to_builtins(_ordered(value), str_keys=True, enc_hook=_to_json))


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
    old = {name: getattr(value, name) for name in fields_of(kind) if hasattr(value, name)}
    new = {name: one for name, part in old.items() if (one := _ordered(part)) is not part}
    twin = copy.copy(value) if new else value
    set_field: Any = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, one in new.items():
        set_field(twin, name, one)
    return twin


@functools.lru_cache(maxsize=1000)
def fields_of(kind: Any) -> tuple[str, ...]:
    """The names of what an object of this class is made of: none unless it is of a class with declared fields."""
    if issubclass(kind, tuple | msgspec.Struct):
        return tuple(getattr(kind, "__struct_fields__", getattr(kind, "_fields", ())))
    if dataclasses.is_dataclass(kind):
        return tuple(one.name for one in dataclasses.fields(kind))
    return (*kind.model_fields, "__pydantic_extra__", "__pydantic_private__") if is_model(kind) else ()


def is_model(kind: Any) -> bool:
    if not hasattr(kind, "model_validate") or "pydantic" not in sys.modules:
        return False
    return inspect.isclass(kind) and issubclass(kind, sys.modules["pydantic"].BaseModel)


def _to_json(value: Any) -> object:
    kind = type(value)
    if not is_model(kind):
        raise TypeError(f"JSON does not have the type {kind.__name__}")
    return _dumped(value, kind.model_dump, kind.model_validate_json)


def from_json(kind: Any, value: object) -> object:
    """The hook of msgspec for what it does not know: a model, or `object`, which is anything."""
    return _validated(kind.model_validate_json, encode_simple(value)) if is_model(kind) else value


def plain(value: Any, *, subclasses: bool = False) -> object:
    """An object as JSON has it, with all fields of a model. With `subclasses`, parts that are of a subclass of their
    annotation have all of their fields too."""

    def to_json(model: Any) -> object:
        return model.model_dump(**_DUMPED, serialize_as_any=subclasses) if is_model(type(model)) else _to_json(model)

    return msgspec.to_builtins(_ordered(value), str_keys=True, enc_hook=to_json)


class ByPydantic:
    """An annotation that pydantic understands better than msgspec: it writes and reads the values."""

    def __init__(self, hint: Any) -> None:
        pydantic = sys.modules["pydantic"]
        try:  # As msgspec writes bytes.
            adapter = pydantic.TypeAdapter(hint, config={"ser_json_bytes": "base64", "val_json_bytes": "base64"})
        except pydantic.PydanticUserError:  # It is a class that has its own configuration.
            adapter = pydantic.TypeAdapter(hint)
        self._dump, self._validate = adapter.dump_python, adapter.validate_json
        twins: list[str] = []
        with contextlib.suppress(Exception):  # Types of the user's own may have no schema.
            twins = _twins(adapter.json_schema())
        if twins:
            raise TypeError(f"{' and '.join(twins)} look the same in JSON")

    def encode(self, value: object) -> bytes:
        return encode_simple(_dumped(value, self._dump, self._validate))

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        return _validated(self._validate, bytes(data))


def _twins(schema: dict[str, Any]) -> list[str]:
    """The names of models with the same fields, if a union has such. What is inside of a model is its own affair."""
    models = schema.pop("$defs", {})
    unseen: list[Any] = [schema]
    while unseen:
        one = unseen.pop()
        unseen += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        options = one.get("anyOf") if isinstance(one, dict) else None
        shapes: dict[str, list[str]] = {}
        for option in options if isinstance(options, list) else ():
            name = str(option.get("$ref", "")).rpartition("/")[2]
            shape = {key: part for key, part in models.get(name, {}).items() if key not in _TOLD}
            shapes.setdefault(repr(shape), []).extend([name] if shape else [])
        if found := next((names for names in shapes.values() if len(names) > 1), None):
            return found
    return []


_TOLD = ("title", "description")
_DUMPED: dict[str, Any] = {"mode": "json", "by_alias": True, "round_trip": True, "warnings": False}


def _dumped(value: Any, dump: Callable[..., object], validate: Callable[[bytes], Any]) -> object:
    """The value as pydantic writes it, without what is not set, if it comes out the same: apps read `model_fields_set`
    to learn what to update. A default may have been changed in place, or differ each time, or tell two models apart."""
    ordered = _ordered(value)
    whole, some = dump(ordered, **_DUMPED), dump(ordered, **_DUMPED, exclude_unset=True)
    with contextlib.suppress(Exception):
        if some == whole or dump(_ordered(validate(encode_simple(some))), **_DUMPED) == whole:
            return some
    return whole


def _validated(validate: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return validate(data)  # From JSON, a strict model too takes text for a date.
    except ValueError as error:
        found = [(".".join(map(str, one["loc"])), one["msg"]) for one in getattr(error, "errors", list)()]
        reasons = "; ".join(f"{place}: {reason}" if place else reason for place, reason in found)
        raise ValueError(reasons or str(error)) from None


def of_pydantic(hint: Any) -> list[Any]:
    """What an annotation has of pydantic: its classes, models among them, and what it says in `Annotated[…]`."""
    if "pydantic" not in sys.modules:
        return []
    found, seen, unseen = list[Any](), list[Any](), [hint]
    while unseen:
        one = unseen.pop()
        if any(one is other for other in seen):
            continue
        seen.append(one)
        if is_model(one) or hasattr(one, "__pydantic_validator__") or _is_from_pydantic(one):
            found.append(one)
            continue
        origin = typing.get_origin(one)
        unseen += [origin, *typing.get_args(one), getattr(one, "__value__", None)]
        if any(hasattr(one, name) for name in _HAVE_FIELDS):
            with contextlib.suppress(Exception):  # msgspec says what is wrong with them.
                unseen += typing.get_type_hints(one, include_extras=True).values()
    return found


def _is_from_pydantic(one: Any) -> bool:
    """Whether this is a type of pydantic or a constraint that it takes, and not only something made of one."""
    if typing.get_origin(one) is not None:
        return False
    package = str(getattr(one, "__module__", "")).partition(".")[0]
    return package in _PACKAGES or hasattr(one, "__get_pydantic_core_schema__")


_HAVE_FIELDS = ("__dataclass_fields__", "__required_keys__", "_field_defaults")  # Also a TypedDict, and a NamedTuple.
_PACKAGES = {"pydantic", "pydantic_core", "annotated_types"}

encode_simple = msgspec.json.Encoder(order="sorted", enc_hook=_to_json).encode
"""The same as `encode`, and TypeError for values that need more sorting than msgspec does."""
