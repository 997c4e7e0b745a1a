"""Values as annotated: what a codec packs, it unpacks as the same value of the same type."""

import contextlib
import dataclasses
import enum
import math
import typing
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import BadArguments, wire
from outlive.arguments import Codec
from outlive.encoding import encode


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Line:
    price: Decimal
    at: datetime | None = None
    colours: frozenset[Colour] = frozenset()


@dataclasses.dataclass
class Tree:
    name: str
    below: "list[Tree]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Incomparable:
    n: int
    at: datetime


class Shape(msgspec.Struct, tag="shape", rename="camel", frozen=True):
    the_side: Decimal
    the_id: UUID | None = None


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    born: date
    wealth: Decimal = Decimal(0)


class Parcel(TypedDict):
    weight: Decimal
    sent: NotRequired[date]


class Point(NamedTuple):
    x: int
    y: Decimal


def codec_of(annotation: object, returned: object = None) -> Codec:
    def f(x: Any) -> Any: ...

    f.__annotations__ = {"x": annotation, "return": returned}
    return Codec("m.f", f)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
zones: st.SearchStrategy[Any] = (
    st.none() | st.just(UTC) | st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "America/New_York"]).map(ZoneInfo)
)
moments = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=zones)
decimals = st.decimals(allow_nan=False)
lines = st.builds(Line, decimals, st.none() | moments, st.frozensets(st.sampled_from(Colour)))
trees = st.recursive(st.builds(Tree, texts), lambda inner: st.builds(Tree, texts, st.lists(inner, max_size=2)))
people = st.builds(lambda *args: Person(fullName=args[0], born=args[1], wealth=args[2]), texts, st.dates(),
                   st.decimals(allow_nan=False, allow_infinity=False))  # fmt: skip
scalars: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, texts),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=5)),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Decimal, decimals),
    (UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Line, lines),
    (Tree, trees),
    (Shape, st.builds(Shape, decimals, st.none() | st.uuids())),
    (Person, people),
    (Parcel, st.fixed_dictionaries({"weight": decimals}, optional={"sent": st.dates()})),
    (Point, st.builds(Point, st.integers(), decimals)),
    (int | Decimal, st.integers() | decimals),
]
hashable = [pair for pair in scalars if pair[0] not in (Tree, Person, Parcel)]
keys = [pair for pair in scalars if pair[0] in (int, str, date, UUID, Colour, Level)]


containers: list[Any] = [list, tuple, dict, set]
LIST, TUPLE, DICT, SET = containers  # mypy reads list[…] as a type, not as a value.


def around(pair: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """The annotation in a container, and values for it."""
    kind, values = pair
    few = st.lists(values, max_size=3)
    return st.sampled_from(
        [
            (kind, values),
            (kind | None, st.none() | values),
            (LIST[kind], few),
            (TUPLE[kind, ...], few.map(tuple)),
            (TUPLE[kind, int], st.tuples(values, st.integers())),
            (DICT[str, kind], st.dictionaries(texts, values, max_size=3)),
            (LIST[DICT[str, kind]], st.lists(st.dictionaries(texts, values, max_size=2), max_size=2)),
        ]
    )


annotated = (
    st.sampled_from(scalars).flatmap(around)
    | st.sampled_from(hashable).map(lambda pair: (SET[pair[0]], st.sets(pair[1], max_size=3)))
    | st.tuples(st.sampled_from(keys), st.sampled_from(scalars)).map(
        lambda two: (DICT[two[0][0], two[1][0]], st.dictionaries(two[0][1], two[1][1], max_size=3))
    )
)
any_case = annotated.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    match one:
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        case float():
            return one == other and math.copysign(1, one) == math.copysign(1, other)
        case datetime():
            plain = one.replace(tzinfo=None, fold=0), one.utcoffset()
            return plain == (other.replace(tzinfo=None), other.utcoffset())
        case Line() | Tree():
            fields = [field.name for field in dataclasses.fields(one)]
            return all(same(getattr(one, name), getattr(other, name)) for name in fields)
        case Decimal():
            return bool(one.as_tuple() == other.as_tuple())
    return bool(one == other)


@given(any_case)
def test_a_value_comes_out_as_it_went_in(case):
    annotation, value = case
    codec = codec_of(annotation, annotation)
    packed = codec.pack((value,), {})
    assert codec.pack((), {"x": value}) == packed
    positional, named = codec.unpack(packed)
    assert positional == []
    assert same(named["x"], value)
    assert same(codec.decode_result(codec.encode_result(value)), value)
    wire.check(packed)


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3) | moments
    | st.dates() | st.decimals() | st.uuids() | lines | st.sampled_from(Colour) | st.tuples(st.integers())
    | st.lists(st.integers() | st.text(max_size=1), max_size=2) | st.sets(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=1) | st.integers(), st.integers() | st.dates(), max_size=2)
)  # fmt: skip


@given(any_case.map(lambda case: case[0]), anything)
def test_a_value_of_any_type_is_refused_or_comes_out_equal(annotation, value):
    codec = codec_of(annotation)
    got = value
    with contextlib.suppress(BadArguments):
        (got,) = codec.unpack(codec.pack((value,), {}))[1].values()
    assert got is value or same(got, value) or got == value


@given(anything)
def test_a_result_of_any_type_is_refused_or_comes_out_equal_or_as_annotated(value):
    for annotation in (int, datetime, Decimal, Line, list[date], dict[str, Decimal], Any):
        codec = codec_of(Any, annotation)
        got = value
        with contextlib.suppress(wire.NotJson):
            encoded = codec.encode_result(value)
            got = codec.decode_result(encoded)
        if got is not value and not same(got, value) and got != value:
            is_kept = isinstance(value, Line)  # The work is done.
            assert encoded == (encode(value) if is_kept else wire.encode(value))
            assert same(got, msgspec.json.decode(encoded, type=Any if is_kept else annotation))


def test_the_bytes_do_not_depend_on_the_order_of_sets_and_keys():
    colours = list(Colour)
    assert codec_of(set[Colour]).pack((set(colours),), {}) == b'{"x":["blue","red"]}'
    assert codec_of(dict[int, set[str]]).pack(({10: {"b", "a"}, 9: set()},), {}) == b'{"x":{"10":["a","b"],"9":[]}}'


NOT_JSON = " is of type {}, which JSON does not have (its annotation is not used: "


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "three", ": expected int, got str"),
        (int, True, ": expected int, got bool"),
        (int, 1.0, ": expected int, got float"),
        (int, None, ": expected int, got NoneType"),
        (int, ..., ": expected int, got ellipsis"),
        (bool, 1, ": expected bool, got int"),
        (float, True, ": expected int | float, got bool"),
        (float, math.nan, " is nan, which JSON does not have"),
        (list[float], [2**53 + 1], "[0] is 9007199254740993 and would come out as 9007199254740992.0"),
        (float | None, math.nan, " is nan, which JSON does not have"),
        (list[float], [1.0, math.inf], "[1] is inf, which JSON does not have"),
        (str, "a\0", " contains a NUL character, which Postgres can't store"),
        (Tree, Tree("a\0"), "['name'] contains a NUL character, which Postgres can't store"),
        (str, "\ud800", " contains a lone surrogate, which is not valid text"),
        (datetime, "2030-01-01T00:00:00Z", ": expected datetime, got str"),
        (datetime, date(2030, 1, 1), ": expected datetime, got date"),
        (date | None, datetime(2030, 1, 1), ": expected date, got datetime"),
        (Decimal, 1.5, ": expected Decimal, got float"),
        (Decimal, 1, ": expected Decimal, got int"),
        (Decimal, "1.5", ": expected Decimal, got str"),
        (dict[str, Decimal], {"a": Decimal(1), "b": 1.5}, "['b']: expected Decimal, got float"),
        (UUID, "00000000-0000-0000-0000-000000000001", ": expected UUID, got str"),
        (Colour, "red", ": expected Colour, got str"),
        (Colour | None, "green", ": expected Colour, got str"),
        (Literal["a", 1], "b", ": invalid enum value 'b'"),
        (list[int], (1, 2), ": expected list, got tuple"),
        (list[int], [1, "2"], "[1]: expected int, got str"),
        (tuple[int, ...], [1, 2], ": expected tuple, got list"),
        (set[int], [1], ": expected set, got list"),
        (list[datetime], ["2030-01-01T00:00:00Z"], "[0]: expected datetime, got str"),
        (dict[int, str], {"1": "a"}, " is {'1': 'a'} and would come out as {1: 'a'}"),
        (dict[str, object], {"at": datetime(2030, 1, 1)}, "['at'] is of type datetime, which JSON does not have"),
        (list[Any], [1, (2,)], "[1] is a tuple, which would come out as a list: pass a list"),
        (list[object] | None, [{1: 2}], "[0] has the key 1: JSON's keys are text"),
        (Line, {"price": Decimal(1)}, ": expected Line, got dict"),
        (Line, Line(1.5), ".price: expected Decimal, got float"),  # type: ignore[arg-type]
        (Parcel, {"weight": Decimal(1), "colour": 1}, " is {'weight': Decimal('1'), 'colour': 1} and would"),
        (Parcel, {}, ": object missing required field weight"),
        (Person, {"fullName": "Ada"}, ": expected Person, got dict"),
        (Person | None, 7, ": expected Person, got int"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, ": expected int >= 0"),
        (Any, (1,), " is a tuple, which would come out as a list: pass a list"),
        (complex, 1j, NOT_JSON.format("complex") + "JSON has no form for complex)"),
        ("Unknown", UUID(int=1), NOT_JSON.format("UUID") + "name 'Unknown' is not defined)"),
        (str | UUID, UUID(int=1), NOT_JSON.format("UUID") + "Type unions may not contain"),
    ],
    ids=lambda value: str(value)[:40].encode("unicode_escape").decode(),
)  # fmt: skip
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(annotation, value, said):
    with pytest.raises(BadArguments) as raised:
        codec_of(annotation).pack((value,), {})
    assert str(raised.value).startswith(f"m.f can't be enqueued: argument x{said}")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        *((value, f"; annotate x: {type(value).__name__}") for value in (UUID(int=1), Decimal(1), date(2030, 1, 1))),
        (datetime(2030, 1, 1), "which JSON does not have; annotate x: datetime"),
        ((1, 2), "pass a list; annotate x: tuple"),
        (Colour.RED, "which JSON does not have; annotate x: Colour"),
        ([UUID(int=1)], "is of type UUID, which JSON does not have"),
        (1j, "is of type complex, which JSON does not have"),
        (math.inf, "is inf, which JSON does not have"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("annotation", [None, Any], ids=["bare", "Any"])
def test_an_argument_that_an_annotation_would_let_in_is_refused_with_that_annotation(annotation, value, advice):
    def bare(x): ...

    codec = Codec("m.f", bare) if annotation is None else codec_of(annotation)
    with pytest.raises(BadArguments) as raised:
        codec.pack((value,), {})
    assert str(raised.value).endswith(advice)


def test_a_result_that_an_annotation_would_let_out_is_refused_with_that_annotation():
    with pytest.raises(
        wire.NotJson, match="the result is of type UUID, which JSON does not have; annotate it: -> UUID"
    ):
        codec_of(int).encode_result(UUID(int=1))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, 1),
        (int, Level.LOW),
        (str, enum.StrEnum("Name", ["A"]).A),  # type: ignore[attr-defined]
        (Decimal, Decimal("NaN")),
        (Incomparable, Incomparable(1, datetime(2030, 1, 1))),
        (list[Incomparable], [Incomparable(1, datetime(2030, 1, 1, tzinfo=UTC))]),
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))),
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)),
        (dict[str, object], {"a": [1, None, {"b": 1.5}]}),
        (typing.TypeVar("T"), "x"),
        ("Unknown", 1),
        ("not an annotation", 1),
        (complex, 1),
    ],
    ids=str,
)
def test_values_that_are_the_same_in_another_form_are_taken(annotation, value):
    codec = codec_of(annotation, annotation)
    codec.unpack(codec.pack((value,), {}))
    codec.decode_result(codec.encode_result(value))


def test_a_moment_in_the_hour_that_is_repeated_keeps_its_offset():
    codec = codec_of(datetime)
    for fold, offset in ((0, 2), (1, 1)):
        moment = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
        assert codec.unpack(codec.pack((moment,), {}))[1]["x"].utcoffset() == timedelta(hours=offset)


@pytest.mark.parametrize("annotation", [Any, object], ids=str)
def test_anything_with_a_default_of_none_is_plain_json(annotation):
    def f(x: Any = None) -> None: ...

    f.__annotations__["x"] = annotation
    with pytest.raises(BadArguments, match="argument x is a tuple, which would come out as a list: pass a list"):
        Codec("m.f", f).pack(((1,),), {})
    assert Codec("m.f", f).pack(({"a": 1},), {}) == b'{"x":{"a":1}}'


def test_an_argument_that_is_not_given_keeps_its_default():
    def f(a: int, b: Decimal = Decimal(1), *, c: list[int] | None = None) -> None: ...

    codec = Codec("m.f", f)
    assert codec.unpack(b'{"a":1}') == ([], {"a": 1})
    assert codec.unpack(b'{"a":1,"c":[2]}') == ([], {"a": 1, "c": [2]})
    assert codec.unpack(b'[1,"2.5"]') == ([], {"a": 1, "b": Decimal("2.5")})


def test_parameters_of_every_kind_are_decoded_by_their_annotations():
    def f(a: date, /, b: Decimal, *more: UUID, c: Colour, **others: timedelta) -> None: ...

    codec = Codec("m.f", f)
    call = (date(2030, 1, 1), Decimal(1), UUID(int=1)), {"c": Colour.RED, "a": timedelta(1)}
    packed = codec.pack(*call)
    assert codec.unpack(packed) == (list(call[0]), call[1])
    with pytest.raises(BadArguments, match=r"argument more\[0\]: expected UUID, got str"):
        codec.pack((date(2030, 1, 1), Decimal(1), "x"), {"c": Colour.RED})
    with pytest.raises(BadArguments, match="argument d: expected timedelta, got int"):
        codec.pack((date(2030, 1, 1), Decimal(1)), {"c": Colour.RED, "d": 1})
    with pytest.raises(BadArguments, match=r"^argument more\[0\]: invalid UUID$"):
        codec.unpack(b'{"*":["2030-01-01","1","x"],"c":"red"}')
    with pytest.raises(BadArguments, match=r"^argument d: expected duration, got int$"):
        codec.unpack(b'{"*":["2030-01-01","1"],"c":"red","d":1}')


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@decorated
def later(day: "Later") -> "Later":
    return day


class Later(msgspec.Struct):
    n: int


def test_annotations_may_name_what_comes_later_also_under_a_decorator():
    codec = Codec("m.later", later)
    assert codec.unpack(codec.pack((Later(1),), {})) == ([], {"day": Later(1)})
    assert codec.decode_result(codec.encode_result(Later(2))) == Later(2)
