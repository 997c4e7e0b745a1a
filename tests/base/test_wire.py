"""JSON as it travels: what encode takes, decode gives back."""

import contextlib
import enum
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import wire
from tests.base.test_annotations import same

texts = st.text('aé\\u0"\0\n\x7f\u2028\ud800\udfff\U0001f40d')
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
anything = st.recursive(
    json | st.binary() | st.datetimes() | st.uuids() | st.decimals() | st.complex_numbers() | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(st.integers(), max_size=2)
        | st.dictionaries(texts | st.integers() | st.none() | st.floats(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json | anything)
def test_an_encoded_value_is_decoded_unchanged(value):
    with contextlib.suppress(wire.NotJson):
        assert same(wire.decode(wire.encode(value)), value)


@given(json)
def test_json_is_refused_only_for_values_that_it_cannot_have(value):
    def is_fine(value: Any) -> bool:
        match value:
            case str():
                return "\0" not in value and value.encode("utf-8", "ignore").decode() == value
            case float():
                return math.isfinite(value)
            case list():
                return all(map(is_fine, value))
            case dict():
                return all(is_fine(key) and is_fine(item) for key, item in value.items())
        return True

    if is_fine(value):
        wire.encode(value)
    else:
        with pytest.raises(wire.NotJson):
            wire.encode(value)


def test_the_same_value_is_always_written_the_same():
    assert wire.encode({"b": 1, "a": {"d": 1, "c": 2}}) == wire.encode({"a": {"c": 2, "d": 1}, "b": 1})


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


class Plain(enum.Enum):
    A = "a"


@pytest.mark.parametrize("value", [Level.LOW, Name.A, OrderedDict(a=1)])
def test_a_value_that_equals_its_plain_form_is_accepted(value):
    assert wire.decode(wire.encode(value)) == value


class Pair(NamedTuple):
    a: int
    b: int


class Point(msgspec.Struct):
    x: int


@pytest.mark.parametrize("value", [Plain.A, Point(1), Pair(1, 2), bytearray(b"a"), range(3), ...])
def test_a_value_that_would_be_decoded_differently_is_refused(value):
    with pytest.raises(wire.NotJson, match="value is "):
        wire.encode(value)


def test_the_first_culprit_is_named_by_its_path():
    with pytest.raises(wire.NotJson, match=r"it\['a'\]\[1\]\['b'\] is a tuple, which would come out as a list"):
        wire.encode({"a": [0, {"b": ()}]}, "it")
