"""Values as annotated: classes of the user's own, results that are not as annotated, and what must not get lost."""

import dataclasses
import enum
import math
import os
import subprocess
import sys
from datetime import UTC, date, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from outlive import BadArguments
from outlive.arguments import Codec
from tests.base.test_annotations import codec_of

T = TypeVar("T")


@dataclasses.dataclass
class Line:
    price: Decimal
    text: str = ""


class Event(TypedDict):
    id: int
    labels: NotRequired[dict[str, list[str | None]]]


class Parcel(TypedDict):
    weight: Decimal
    lines: NotRequired[list[Line]]


class Box(msgspec.Struct, tag="box"):
    line: Line


class Bag(msgspec.Struct, tag="bag"):
    size: int = 0


@dataclasses.dataclass(frozen=True)
class Noted:
    name: str
    note: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass
class Carton(Generic[T]):
    item: T


@dataclasses.dataclass
class Either:
    it: str | UUID


class Holder(pydantic.BaseModel):
    either: Either


@dataclasses.dataclass
class Entity:
    id: int
    data: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and self.id == other.id


class Member(msgspec.Struct):
    id: int
    data: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and self.id == other.id

    __hash__ = None  # type: ignore[assignment]


class Account(pydantic.BaseModel):
    id: int
    data: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self.id == other.id


class Pair(NamedTuple):
    id: int
    data: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.id == other.id


class Patch(pydantic.BaseModel):
    name: str | None = None
    price: Decimal | None = None
    tags: list[str] = []
    id: UUID = pydantic.Field(default_factory=uuid4)
    inner: "Patch | None" = None


class Purse(pydantic.BaseModel):
    money: Decimal


@pytest.mark.parametrize(
    ("annotation", "value", "got"),
    [
        (Decimal, 7, Decimal(7)),
        (Decimal, [1, None], [1, None]),
        (date, "2030-01-31", date(2030, 1, 31)),
        (date, "soon", "soon"),
        (tuple[int, int], [1, 2], (1, 2)),
        (set[int], [2, 1, 2], {1, 2}),
        (Line, {"price": "1.50"}, Line(Decimal("1.50"))),
        (Line, {"cost": 1}, {"cost": 1}),
        (Line, {"price": "1.50", "colour": "red"}, {"price": "1.50", "colour": "red"}),
        (Parcel, {"weight": "1.50", "colour": "red"}, {"weight": "1.50", "colour": "red"}),
        (Event, {"id": 1, "kind": "push"}, {"id": 1, "kind": "push"}),
        (int, "three", "three"),
        (int, None, None),
    ],
    ids=str,
)
def test_a_result_that_json_holds_is_kept_and_comes_out_as_annotated_where_it_fits(annotation, value, got):
    codec = codec_of(Any, annotation)
    result = codec.decode_result(codec.encode_result(value))
    assert (type(result), result) == (type(got), got)


@pytest.mark.parametrize("annotation", [Event, list[Event], Event | None, dict[str, Event]], ids=str)
def test_a_typed_dict_of_plain_json_may_have_more_keys(annotation):
    event = {"id": 1, "labels": {"a": ["b", None]}, "kind": "push"}
    value = {"list": [event], "dict": {"a": event}}.get(getattr(annotation, "__name__", ""), event)
    codec = codec_of(annotation)
    assert codec.unpack(codec.pack((value,), {})) == ([], {"x": value})


@pytest.mark.parametrize(
    ("annotation", "args", "said"),
    [
        (Parcel, '{"weight":"1","colour":1}', "argument x has the key 'colour', which Parcel does not have"),
        (Parcel | None, '{"weight":"1","colour":1}', "argument x has the key 'colour', which Parcel does not have"),
        (Line, '{"price":"1","cost":1}', "argument x has the key 'cost', which Line does not have"),
        (list[Line], '[{"price":"1"},{"price":"1","a":1}]', "argument x[1] has the key 'a', which Line does not have"),
        (tuple[int, Line], '[1,{"price":"1","a":1}]', "argument x[1] has the key 'a', which Line does not have"),
        (dict[str, Line], '{"k":{"price":"1","a":1}}', "argument x['k'] has the key 'a', which Line does not have"),
        (Parcel, '{"weight":"1","lines":[{"price":"1","a":1}]}', "argument x.lines[0] has the key 'a', which Line"),
        (Box | Bag, '{"type":"box","line":{"price":"1","a":1}}', "argument x.line has the key 'a', which Line does"),
    ],
    ids=str,
)
def test_a_key_that_would_get_lost_is_refused_where_the_job_runs(annotation, args, said):
    codec = codec_of(annotation)
    for data in (f'{{"x":{args}}}', f"[{args}]"):
        with pytest.raises(BadArguments) as raised:
            codec.unpack(data.encode())
        assert str(raised.value).startswith(said)
    assert codec_of(Box | Bag).unpack(b'{"x":{"type":"bag","more":1}}')[1]["x"] == Bag()


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Noted, Noted("a", (1, 2)), ".note"),
        (list[Noted], [Noted("a", math.nan)], "[0].note"),
        (set[Noted], {Noted("a", (1, 2))}, "[0].note is a tuple"),
        (Entity, Entity(1, (1, 2)), ".data"),
        (Member, Member(1, math.nan), ".data"),
        (Account, Account(id=1, data=(1, 2)), ".data"),
        (Pair, Pair(1, (1, 2)), ".data"),
        (Purse, Purse.model_construct(money=1.5), ".money"),
        (time, time(12, tzinfo=ZoneInfo("Europe/Berlin")), " is datetime.time(12, 0, tzinfo="),
        (list[time], [time(12, tzinfo=ZoneInfo("Europe/Berlin"))], "[0] is datetime.time(12, 0, tzinfo="),
        (Carton[Decimal], Carton(1.5), ".item: expected Decimal, got float"),
        (dict[str, object], {"a": [1j]}, "['a'][0] is of type complex, which JSON does not have"),
        (set[Decimal], {1.5}, ""),
        (dict[Decimal, int], {1.5: 1}, ""),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_a_change_that_equality_hides_is_refused(annotation, value, said):
    with pytest.raises(BadArguments) as raised:
        codec_of(annotation).pack((value,), {})
    assert f"x{said}" in str(raised.value)


def test_a_time_keeps_its_offset():
    codec = codec_of(time)
    for value in (time(12), time(12, tzinfo=UTC), time(12, tzinfo=timezone(timedelta(hours=-3)))):
        got = codec.unpack(codec.pack((value,), {}))[1]["x"]
        assert (got, got.utcoffset()) == (value, value.utcoffset())


@pytest.mark.parametrize(
    "value",
    [
        *(Noted("a", [1]), Entity(1, {"a": 1.5}), Member(1, "b"), Account(id=1, data=[None]), Pair(1, "a")),
        *(Holder(either=Either(UUID(int=1))), Holder(either=Either("a"))),
    ],
    ids=str,
)
def test_all_fields_of_an_object_travel_whatever_equality_says(value):
    codec = codec_of(type(value))
    assert repr(codec.unpack(codec.pack((value,), {}))[1]["x"]) == repr(value)


def test_a_model_still_knows_which_of_its_fields_were_set():
    codec = codec_of(Patch, Patch)
    patch = Patch(id=UUID(int=1), name="a", inner=Patch(id=UUID(int=2), price=None))
    results: list[Any] = [codec.unpack(codec.pack((patch,), {}))[1]["x"]]
    results.append(codec.decode_result(codec.encode_result(patch)))
    for got in results:
        assert got.model_fields_set == {"id", "name", "inner"}
        assert got.inner.model_fields_set == {"id", "price"}
        assert got == patch


SETS = """
from tests.base.test_faithful import Bin, Colour, Crate, Drawer, Tags, codec_of
colours = set(Colour)
names = frozenset({frozenset({"a", "b"}), frozenset({"b", "c"}), frozenset({"c", "d"}), frozenset({"d"})})
crate = Crate(theColours=colours, names=names, tags=Tags(set("efgh")))
for value in (Bin(colours, names), Drawer(colours, names), crate, [Bin(colours)]):
    kind = list[Bin] if isinstance(value, list) else type(value)
    codec = codec_of(kind, kind)
    print(codec.pack((value,), {}), codec.encode_result(value))
"""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


@dataclasses.dataclass
class Bin:
    colours: set[Colour]
    names: frozenset[frozenset[str]] = frozenset()


class Drawer(msgspec.Struct, array_like=True, tag=True):
    colours: set[Colour]
    names: frozenset[frozenset[str]] = frozenset()


class Tags(pydantic.RootModel[set[str]]):
    pass


class Crate(pydantic.BaseModel):
    colours: set[Colour] = pydantic.Field(alias="theColours")
    names: frozenset[frozenset[str]] = frozenset()
    tags: Tags = Tags(set())


def test_the_bytes_of_sets_inside_objects_are_the_same_in_every_process():
    seen = {
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(1, 5)
    }
    (only,) = seen
    assert only.count(b'["e","f","g","h"]') == 2
    assert only.count(b'["blue","green","red"]') == 8
    assert only.count(b'[["a","b"],["b","c"],["c","d"],["d"]]') == 6


@pytest.mark.parametrize("annotation", [float, float | None, "typing.Optional[float]", "float"], ids=str)
@pytest.mark.parametrize("value", [5, 2**53 + 1, -1, 1.5, 5.0], ids=str)
def test_an_int_for_a_float_stays_an_int(annotation, value):
    codec = codec_of(annotation, annotation)
    for data in (codec.pack((value,), {}), f"[{value}]".encode()):
        (got,) = (lambda found: found[0] or list(found[1].values()))(codec.unpack(data))
        assert repr(got) == repr(value)
    assert repr(codec.decode_result(codec.encode_result(value))) == repr(value)
    with pytest.raises(BadArguments):
        codec_of(list[float]).pack((value,), {})


def test_only_arguments_that_need_it_are_compared_part_by_part():
    def pay(amount: Decimal, rows: list[Any], more: list[Any] | None = None) -> None: ...

    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    codec = Codec("m.pay", pay)
    assert codec.unpack(codec.pack((Decimal(1), deep), {})) == ([], {"amount": Decimal(1), "rows": deep})
    with pytest.raises(BadArguments, match="argument amount: expected Decimal, got float"):
        codec.pack((1.5, deep), {})


class Rejected(Exception):
    pass


@dataclasses.dataclass
class Picky:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise Rejected("it is negative")


class Fussy(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def _check(cls, n: int) -> int:
        if n < 0:
            raise Rejected("it is negative")
        return n


@pytest.mark.parametrize("annotation", [Picky, Fussy], ids=str)
def test_any_error_of_the_users_own_classes_names_the_argument(annotation):
    codec = codec_of(annotation, annotation)
    for data in (b'{"x":{"n":-1}}', b'[{"n":-1}]'):
        with pytest.raises(BadArguments, match=r"^argument x: Rejected: it is negative$"):
            codec.unpack(data)
    assert codec.decode_result(codec.encode_result({"n": -1})) == {"n": -1}
    changed = annotation(n=1)
    changed.n = -1
    with pytest.raises(BadArguments, match=r"argument x: Rejected: it is negative$"):
        codec.pack((changed,), {})


def test_an_annotation_that_is_missing_at_first_is_used_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Outer:
        inner: "NotYet"  # type: ignore[name-defined]  # noqa: F821

    direct, inside = codec_of("list[NotYet]", "NotYet"), codec_of(Outer)
    for codec in (direct, inside):
        for _ in range(2):
            with pytest.raises(BadArguments, match="annotation is not used: name 'NotYet' is not defined"):
                codec.pack((UUID(int=1),), {})
    assert direct.decode_result(b'"2030-01-31"') == "2030-01-31"
    monkeypatch.setitem(globals(), "NotYet", date)
    monkeypatch.setitem(codec_of.__globals__, "NotYet", date)
    day = date(2030, 1, 31)
    assert direct.unpack(direct.pack(([day],), {}))[1] == {"x": [day]}
    assert direct.decode_result(b'"2030-01-31"') == day
    assert inside.unpack(inside.pack((Outer(day),), {}))[1] == {"x": Outer(day)}


def test_a_codec_that_was_made_makes_nothing_more_when_it_is_used():
    codec = codec_of(Line, Line)
    codec.make()
    made = dict(vars(codec))
    codec.unpack(codec.pack((Line(Decimal(1)),), {}))
    codec.decode_result(codec.encode_result(Line(Decimal(1))))
    assert vars(codec) == made
