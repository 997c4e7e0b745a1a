"""An app whose tasks take and give values of many types."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
from pydantic import Field

import outlive

app = outlive.App()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Line:
    price: Decimal
    colours: set[Colour] = field(default_factory=set)


@dataclass(frozen=True)
class Order:
    id: UUID
    placed_at: datetime
    lines: list[Line] = field(default_factory=list)


class Circle(msgspec.Struct, tag="circle", rename="camel"):
    the_radius: Decimal


class Square(msgspec.Struct, tag="square", rename="camel"):
    the_side: Decimal


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    born: date
    wealth: Decimal = Decimal(0)


class Ok(pydantic.BaseModel):
    id: int


class Kid(Ok):
    toys: list[str] = []


class No(pydantic.BaseModel):
    reason: str


class Denied(pydantic.BaseModel):
    reason: str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Parcel(TypedDict, total=False):
    sent: date
    weight: Decimal


class Point(NamedTuple):
    x: Decimal
    y: Decimal


class Rejected(Exception):
    pass


@dataclass
class Picky:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise Rejected("it is negative")


MOMENT = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
FAR_AWAY = MOMENT.replace(year=2999)
ID = UUID(int=2**100 + 7)
ORDER = Order(ID, MOMENT, [Line(Decimal("1.50"), {Colour.RED}), Line(Decimal(-1))])
PERSON = Person(fullName="Ada", born=date(1815, 12, 10), wealth=Decimal("12.50"))
CASES: dict[str, tuple[Any, Any]] = {
    "moment": (datetime, MOMENT),
    "naive_moment": (datetime, MOMENT.replace(tzinfo=None)),
    "day": (date, MOMENT.date()),
    "clock": (time, MOMENT.time()),
    "span": (timedelta, timedelta(days=-3, microseconds=1)),
    "amount": (Decimal, Decimal("10.20")),
    "id": (UUID, ID),
    "colour": (Colour, Colour.BLUE),
    "level": (Level, Level.LOW),
    "order": (Order, ORDER),
    "shape": (Circle | Square, Square(Decimal("1.1"))),
    "person": (Person, PERSON),
    "data": (bytes, b"\0\xff"),
    "people": (dict[str, list[Person]], {"a": [PERSON]}),
    "days": (list[date], [MOMENT.date()]),
    "by_day": (dict[date, Decimal], {MOMENT.date(): Decimal(1)}),
    "by_number": (dict[int, Colour], {7: Colour.RED}),
    "pair": (tuple[UUID, Decimal], (ID, Decimal("0.1"))),
    "many": (tuple[timedelta, ...], (timedelta(1), timedelta(2))),
    "unique": (set[UUID], {ID}),
    "frozen": (frozenset[Colour], frozenset({Colour.RED})),
    "perhaps": (datetime | None, MOMENT),
    "missing": (datetime | None, None),
    "either": (int | Decimal, Decimal(1)),
    "choice": (Literal["a", 1], "a"),
    "parcel": (Parcel, {"sent": MOMENT.date(), "weight": Decimal(2)}),
    "point": (Point, Point(Decimal(1), Decimal("2.0"))),
}
"""For each task of `HANDING_BACK`, the annotation of its argument and of its result, and a value for them."""


def _handing_back(name: str, annotation: Any) -> Callable[..., Any]:
    def hand_back(value: Any, shown: str) -> Any:
        if repr(value) != shown:
            raise outlive.Fail(f"{value!r} came, and {shown} was sent")
        return value

    hand_back.__name__ = hand_back.__qualname__ = name
    hand_back.__annotations__ |= {"value": annotation, "return": annotation}
    return hand_back


HANDING_BACK = {name: app.task(_handing_back(name, annotation)) for name, (annotation, _) in CASES.items()}


@app.task(preload=False)
def hand_back_cold(order: Order, people: list[Person]) -> tuple[Order, list[Person]]:
    if not isinstance(order, Order) or not isinstance(people[0], Person):
        raise outlive.Fail(f"{order!r} and {people!r} came")
    return order, people


@app.task(recycle_after=100)
def total(*lines: Line, at: datetime, **rates: Decimal) -> Decimal:
    if at.tzinfo is None:
        raise outlive.Fail("it has no time zone")
    return sum((line.price for line in lines), Decimal(0)) * sum(rates.values(), Decimal(0))


@app.schedule(every="1h", name="bill", args={"order": ORDER, "at": MOMENT, "rate": Decimal("1.50")}, start=FAR_AWAY)
@app.task(max_attempts=5, backoff=0)
def bill(order: Order, at: datetime, rate: Decimal) -> tuple[Order, datetime, Decimal]:
    if not (isinstance(order, Order) and isinstance(at, datetime) and isinstance(rate, Decimal)):
        raise outlive.Fail(f"{order!r}, {at!r} and {rate!r} came")
    return order, at, rate


@app.task(max_attempts=5, backoff=0)
def pay(n: int, when: datetime | None = None, lines: list[Line] | None = None) -> None: ...


@app.task(max_attempts=5, backoff=0)
def pick(one: Picky) -> None: ...


@app.task(max_attempts=5, backoff=0, preload=False)
def pay_cold(n: int) -> None: ...


@app.task
async def answer(order: pydantic.PositiveInt, pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> Ok | No:
    return Ok(id=order) if isinstance(pet, Dog) else No(reason="no cats")


@app.task
def give_a_kid() -> Ok:
    return Kid(id=1, toys=["ball"])


@app.task
def give_a_model():
    return Ok(id=1)


@app.task
def give_twins() -> No | Denied:
    return Denied(reason="full")


@outlive.step
def charge() -> Ok | No:
    return No(reason="no money")


@outlive.step
def charge_loosely():
    return Ok(id=1)


@outlive.step
def charge_twins() -> No | Denied:
    return Denied(reason="full")


@app.task(max_attempts=2, backoff=0)
def take_steps() -> list[str]:
    """What the steps give is the same in the first attempt, which fails, and in the second one, which replays them."""
    values = [repr(charge()), repr(charge_loosely()), repr(charge_twins())]
    if (earlier := outlive.current().last_checkpoint) is None:
        outlive.current().checkpoint(values)
        raise RuntimeError("again")
    if earlier != values:
        raise outlive.Fail(f"{earlier} became {values}")
    return values


@app.task
def receive_a_pet() -> str:
    return repr(outlive.current().receive("pet", Annotated[Cat | Dog, Field(discriminator="kind")], timeout=20))


@app.task
def give_wrongly(kind: str) -> Decimal:
    """Give what the annotation does not say."""
    values: dict[str, Any] = {"number": 7, "text": "1.5", "list": [1, None], "tuple": (1, 2)}
    return values[kind]


@app.task
def complete(database_url: str) -> Decimal:
    """End the attempt in a transaction of the job's own."""
    import psycopg

    with psycopg.connect(database_url) as connection:
        outlive.current().complete(connection, Decimal("2.50"))
    return Decimal(0)


@app.task
def spawn(prices: list[Decimal]) -> None:
    for price in prices:
        outlive.current().spawn(total.job(Line(price), at=MOMENT, rate=Decimal(2)))
