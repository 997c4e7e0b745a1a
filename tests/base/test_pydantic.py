"""What pydantic can do is pydantic's: its types and constraints in annotations of arguments, results and signals."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from pydantic import AfterValidator, AwareDatetime, Field, HttpUrl, PositiveInt, SecretStr
from typing_extensions import TypedDict

from outlive import BadArguments, wire
from outlive.annotations import encode_alone, form_of
from tests.base.test_annotations import codec_of


class Ok(pydantic.BaseModel):
    id: int


class Kid(Ok):
    toys: list[str] = []


class No(pydantic.BaseModel):
    reason: str


class Denied(pydantic.BaseModel):
    reason: str


class Later(pydantic.BaseModel):
    id: int
    when: date | None = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Kitten(Cat):
    lives: int = 8


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class House(pydantic.BaseModel):
    first: Ok


class Safe(pydantic.BaseModel):
    word: SecretStr


@pydantic.dataclasses.dataclass
class Box:
    size: Annotated[int, Field(alias="theSize", gt=0)]


@dataclasses.dataclass
class Line:
    count: PositiveInt
    price: Decimal = Decimal(1)


class Filter(TypedDict):
    limit: Annotated[int, Field(le=100)]


class Parcel(msgspec.Struct):
    content: Ok | No


@dataclasses.dataclass
class Plain:
    at: date
    either: str | UUID = ""


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
FIVE = 555
URL = HttpUrl("https://example.com/a")
CASES: list[tuple[Any, Any]] = [
    (Ok | No, No(reason="closed")),
    (Ok | No, Ok(id=1)),
    (Ok | int, 7),
    (list[Ok | No | None], [Ok(id=1), None, No(reason="")]),
    (Ok | Later, Later(id=1)),
    (Pet, Dog()),
    (dict[str, Pet], {"a": Cat(), "b": Dog()}),
    (PositiveInt, 5),
    (Annotated[int, Field(gt=0)] | None, None),
    (Annotated[float, Field(gt=0)], FIVE),
    (Annotated[Decimal, Field(max_digits=3)], Decimal("1.50")),
    (Annotated[bytes, Field(max_length=3)], b"\xff\xfe\xfb"),
    (Annotated[list[UUID], Field(min_length=1)], [UUID(int=1)]),
    (Annotated[set[str], Field(min_length=1)], {"a"}),
    (AwareDatetime, MOMENT),
    (HttpUrl, URL),
    (pydantic.JsonValue, {"a": [1, None]}),
    (Box, Box(theSize=1)),  # type: ignore[call-arg]
    (Line, Line(2)),
    (Filter, {"limit": 7}),
]


@pytest.mark.parametrize(("annotation", "value"), CASES)
def test_what_pydantic_takes_comes_out_as_it_went_in(annotation, value):
    codec = codec_of(annotation, annotation)
    got = codec.unpack(codec.pack((value,), {}))[1]["x"]
    assert (got, type(got)) == (value, type(value) if value is not FIVE else float)
    assert codec.decode_result(codec.encode_result(value)) == value
    assert codec.kept(value)[1] == codec.unused_result() == ""


@pytest.mark.parametrize(("kind", "value"), [(Ok | Later, Later(id=1)), (Pet, Dog()), (Ok, Ok(id=1)), (HttpUrl, URL)])
def test_a_signal_comes_as_the_type_that_the_job_receives(kind, value):
    assert form_of(kind, codec_of).decode(encode_alone(value, "the value"), "the signal") == value
    with pytest.raises(BadArguments, match="the signal: Input should be greater than 0"):
        form_of(PositiveInt, codec_of).decode(encode_alone(-5, "the value"), "the signal")


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Annotated[int, Field(gt=0)], -5, ": Input should be greater than 0"),
        (PositiveInt, -5, ": Input should be greater than 0"),
        (PositiveInt | None, 0, ": Input should be greater than 0"),
        (PositiveInt, "5", ": expected int, got str"),
        (PositiveInt, True, ": expected int, got bool"),
        (PositiveInt, 3.0, ": expected int, got float"),
        (dict[str, PositiveInt], {"a": 3.0}, "['a']: expected int, got float"),
        (Annotated[bool, Field(description="urgent")], 1, ": expected bool, got int"),
        (list[PositiveInt], [1, -1], ": 1: Input should be greater than 0"),
        (Line, Line(-1), ": count: Input should be greater than 0"),
        (Filter, {"limit": 101}, ": limit: Input should be less than or equal to 100"),
        (Annotated[str, AfterValidator(str.lower)], "A", " is 'A' and would come out as 'a'"),
        (AwareDatetime, datetime(2030, 1, 1), ": Input should have timezone info"),
        (HttpUrl, "https://example.com/a", ": expected HttpUrl, got str"),
        (Ok | No, Kid(id=1), ": expected Ok, got Kid"),
        (Ok | No, {"id": 1}, ": expected Ok, got dict"),
        (Ok, Kid(id=1), ": expected Ok, got Kid"),
        (Pet, Ok(id=1), ": Unable to extract tag using discriminator 'kind'"),
        (No | Denied, No(reason=""), " is of type No, which JSON does not have (its annotation is not used: "),
        (Parcel, Parcel(Ok(id=1)), " is of type Parcel, which JSON does not have (its annotation is not used: Type"),
    ],
)
def test_what_pydantic_refuses_is_refused_by_the_name_of_its_parameter(annotation, value, said):
    with pytest.raises(BadArguments) as raised:
        codec_of(annotation).pack((value,), {})
    assert str(raised.value).startswith(f"m.f can't be enqueued: argument x{said}")


@pytest.mark.parametrize(
    ("annotation", "args", "said"),
    [
        (PositiveInt, "-5", "argument x: Input should be greater than 0"),
        (Ok | No, "{}", "argument x: Ok.id: Field required; No.reason: Field required"),
        (Line, '{"count":1,"colour":"red"}', "argument x has the key 'colour', which Line does not have"),
    ],
)
def test_wrong_arguments_from_sql_are_refused_where_the_job_runs(annotation, args, said):
    for data in (f'{{"x":{args}}}', f"[{args}]"):
        with pytest.raises(BadArguments) as raised:
            codec_of(annotation).unpack(data.encode())
        assert str(raised.value) == said


@pytest.mark.parametrize(
    ("annotation", "value", "stored", "got"),
    [
        (Ok, Kid(id=1, toys=["a"]), b'{"id":1,"toys":["a"]}', Ok(id=1)),
        (Ok | No, Kid(id=1, toys=["a"]), b'{"id":1,"toys":["a"]}', Ok(id=1)),
        (list[Ok], [Kid(id=1, toys=["a"])], b'[{"id":1,"toys":["a"]}]', [Ok(id=1)]),
        (House, House(first=Kid(id=1, toys=["a"])), b'{"first":{"id":1,"toys":["a"]}}', House(first=Ok(id=1))),
        (Cat, Kitten(), b'{"kind":"cat","lives":8}', Cat(lives=8)),
        (Any, [Cat()], b'[{"kind":"cat","lives":9}]', [{"kind": "cat", "lives": 9}]),
        (No, Ok(id=1), b'{"id":1}', {"id": 1}),
        (PositiveInt, -5, b"-5", -5),
        (Any, [Ok(id=1)], b'[{"id":1}]', [{"id": 1}]),
        (Any, {"line": Line(2)}, b'{"line":{"count":2,"price":"1"}}', {"line": {"count": 2, "price": "1"}}),
        (No | Denied, Denied(reason="a"), b'{"reason":"a"}', {"reason": "a"}),
        (Parcel, Parcel(Ok(id=1)), b'{"content":{"id":1}}', {"content": {"id": 1}}),
        (Plain, Plain(date(2030, 1, 1)), b'{"at":"2030-01-01","either":""}', {"at": "2030-01-01", "either": ""}),
    ],
)
def test_an_object_that_is_not_as_annotated_is_kept_in_full_because_the_work_is_done(annotation, value, stored, got):
    codec = codec_of(Any, annotation)
    assert codec.encode_result(value) == stored
    assert codec.kept(value)[1].startswith("the result")
    result = codec.decode_result(stored)
    assert (type(result), result) == (type(got), got)


def test_an_object_without_a_return_annotation_comes_out_as_plain_json():
    def bare(x): ...

    codec = codec_of(Any)
    codec = type(codec)("m.bare", bare)
    assert codec.decode_result(codec.encode_result(Ok(id=1))) == {"id": 1}
    assert codec.kept(Ok(id=1))[1].endswith("annotate it: -> Ok")


@pytest.mark.parametrize(
    "value",
    [Safe(word=SecretStr("x")), SecretStr("x"), Ok.model_construct(id=float("nan")), [Line(2, Decimal(1)), {1}], (1,)],
)
def test_a_result_that_would_lose_something_fails_the_job(value):
    with pytest.raises(wire.NotJson, match="the result"):
        codec_of(Any).encode_result(value)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (No | Denied, "m.f returns {}, and its annotation is not used: No and Denied look the same in JSON"),
        (Parcel, "m.f returns {}, and its annotation is not used: Type unions may not contain more than one custom"),
        (complex, "m.f returns complex, and its annotation is not used: JSON has no form for complex"),
        ("Unknown", "m.f returns Unknown, and its annotation is not used: name 'Unknown' is not defined"),
    ],
)
def test_a_result_whose_annotation_is_not_used_is_named_with_it(returned, said):
    import inspect

    shown = returned if isinstance(returned, str) else inspect.formatannotation(returned)
    assert codec_of(Any, returned).unused_result().startswith(said.format(shown))


@pytest.mark.parametrize("returned", [None, Any, int, Ok, Ok | No, "typing.NoReturn", "typing.Never"])
def test_a_result_that_is_annotated_with_what_is_used_or_says_nothing_is_not_named(returned):
    assert codec_of(Any, returned).unused_result() == ""


def test_constraints_of_one_parameter_leave_the_others_as_they_are():
    def pay(amount: PositiveInt, at: datetime, *more: Ok | No, **rates: Annotated[Decimal, Field(lt=1)]) -> None: ...

    make: Callable[..., Any] = type(codec_of(Any))
    codec = make("m.pay", pay)
    call = (1, MOMENT, Ok(id=1), No(reason="")), {"a": Decimal("0.5")}
    assert codec.unpack(codec.pack(*call)) == (list(call[0]), call[1])
    with pytest.raises(BadArguments, match="argument a: Input should be less than 1"):
        codec.pack((1, MOMENT), {"a": Decimal(2)})
