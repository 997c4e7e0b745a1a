"""The types that an annotation is made of, and the parts of a value with their types."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect as types

_ARRAYS = (list, tuple, set, frozenset)
_PLAIN = (types.AnyType, types.NoneType, types.BoolType, types.IntType, types.FloatType, types.StrType, types.Field,
          types.LiteralType, types.UnionType, types.ListType, types.DictType, types.TypedDictType)  # fmt: skip
_DEEP = (types.AnyType, types.CustomType, types.UnionType, types.CollectionType, types.TupleType, types.NamedTupleType,
         types.DictType, types.DataclassType, types.TypedDictType, types.StructType)  # fmt: skip
"""Types that have parts, or that may hold anything."""


def parts_of(part: object, seen: set[int]) -> Iterator[object]:
    """All types that a type is made of. A type may be a part of itself."""
    if isinstance(part, tuple):
        for one in part:
            yield from parts_of(one, seen)
    elif isinstance(part, types.Type | types.Field) and id(part) not in seen:
        seen.add(id(part))
        yield part
        yield from parts_of(msgspec.structs.astuple(part), seen)


def is_anything(part: object) -> bool:
    """Whether it is Any or object."""
    return isinstance(part, types.AnyType) or (isinstance(part, types.CustomType) and part.cls is object)


def is_open(parts: list[object]) -> bool:
    """Whether it is made of TypedDicts and plain JSON. A TypedDict may have more keys, which decoding would drop."""
    plain = all(
        isinstance(part, _PLAIN) or (isinstance(part, types.CustomType) and part.cls is object) for part in parts
    )
    keys = [part.key_type for part in parts if isinstance(part, types.DictType)]
    has_any = any(isinstance(part, types.TypedDictType) for part in parts)
    return has_any and plain and all(isinstance(key, types.StrType) for key in keys)


def is_sortable(part: object) -> bool:
    """Whether it is no set, or one whose items `<` puts in order. It does not do so with sets inside sets."""
    if not isinstance(part, types.SetType | types.FrozenSetType):
        return True
    return not any(
        isinstance(one, _DEEP) and not isinstance(one, types.TupleType) for one in parts_of(part.item_type, set())
    )


def places(part: object, value: Any, path: str) -> Iterator[tuple[object, Any, str]]:
    """Every part of a value with its type and its path. Objects are either Python's, or still JSON."""
    yield part, value, path
    inner: Iterable[tuple[object, Any, str]] = ()
    match part:
        case types.UnionType():
            inner = ((one, value, path) for one in part.types if _fits(one, value))
        case types.CollectionType(item_type=item) if isinstance(item, _DEEP) and isinstance(value, _ARRAYS):
            inner = ((item, one, f"{path}[{n}]") for n, one in enumerate(value))
        case types.TupleType(item_types=items) if isinstance(value, _ARRAYS):
            inner = ((item, one, f"{path}[{n}]") for n, (item, one) in enumerate(zip(items, value, strict=False)))
        case types.NamedTupleType(fields=fields) if isinstance(value, _ARRAYS):
            inner = ((field.type, one, f"{path}.{field.name}") for field, one in zip(fields, value, strict=False))
        case types.DictType(value_type=item) if isinstance(item, _DEEP) and isinstance(value, dict):
            inner = ((item, one, f"{path}[{key!r}]") for key, one in value.items())
        case types.DataclassType() | types.TypedDictType() | types.StructType() if isinstance(value, dict):
            named = ((field.type, field.encode_name) for field in part.fields if field.encode_name in value)
            inner = ((item, value[name], f"{path}.{name}") for item, name in named)
        case types.DataclassType() | types.StructType() if isinstance(value, _class_of(part)):
            inner = ((field.type, getattr(value, field.name, None), f"{path}.{field.name}") for field in part.fields)
    for one in inner:
        yield from places(*one)


def _fits(part: object, value: Any) -> bool:
    """Whether a value, or its JSON, can be of this part of a union."""
    match part:
        case types.AnyType() | types.CustomType():
            return True
        case types.CollectionType() | types.TupleType() | types.NamedTupleType():
            return isinstance(value, _ARRAYS)
        case types.StructType(tag_field=str(field)) if isinstance(value, dict):
            return bool(value.get(field) == part.tag)
        case types.DictType() | types.TypedDictType():
            return isinstance(value, dict)
        case types.DataclassType() | types.StructType():
            return isinstance(value, dict | _class_of(part))
    return False


def _class_of(part: types.DataclassType | types.StructType) -> type:
    """The class itself, also of one that is generic: `Box` of `Box[int]`."""
    found: type = typing.get_origin(part.cls) or part.cls
    return found
