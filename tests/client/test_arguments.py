"""Arguments: they arrive as they were given, or nothing is written and the error names the place."""

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlive
from tests.client.example import take

app = outlive.App()


@app.task
def plain(a: object, b: object = 2) -> None: ...


@app.task
def by_position(a: object, b: object = 2, /) -> None: ...


@app.task
def starred(a: object, b: object = 2, *more: object) -> None: ...


@app.task
def mixed(a: object, /, b: object, *more: object, c: object = 3, **others: object) -> None: ...


@app.task
def optional(a: object = 1, /, b: object = 2, *, c: object = 3) -> None: ...


@app.task
def open_ended(*more: object, **others: object) -> None: ...


TASKS: list[outlive.Task[..., Any, Any]] = [plain, by_position, starred, mixed, optional, open_ended]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


values = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2) | st.lists(st.integers(0, 1), max_size=1)
)
names = st.sampled_from(["a", "b", "c", "d", "self", "more", "others", "args"])


@given(st.sampled_from(TASKS), st.lists(values, max_size=5), st.dictionaries(names, values, max_size=4))
def test_packed_arguments_are_unpacked_as_the_same_call(task, args, kwargs):
    signature = inspect.signature(task.function)
    try:
        asked = signature.bind(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(outlive.BadArguments, match=f"can't be called with these arguments: {error}"):
            task.job(*args, **kwargs)
        return
    got_args, got_kwargs = task.codec.unpack(task.job(*args, **kwargs).request.args)
    assert signature.bind(*got_args, **got_kwargs) == asked


def test_defaults_that_are_not_given_stay_with_the_function():
    assert plain.job(1).request.args == b'{"a":1}'
    assert optional.job().request.args == b"{}"
    assert by_position.job(1).request.args == b"[1]"


def test_a_keyword_that_would_look_like_positional_arguments_is_refused():
    with pytest.raises(outlive.BadArguments, match=r"no argument can be named \*"):
        open_ended.job(**{"*": [1]})


@pytest.mark.parametrize(("name", "option"), [("countdown", "delay"), ("delay", "delay"), ("queue", "queue")])
def test_an_option_among_the_arguments_is_refused_with_its_place(name, option):
    said = rf"'{name}'; for an option of the job, use task.using\({option}=…\)"
    with pytest.raises(outlive.BadArguments, match=said):
        plain.job(1, **{name: 5})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((1, 2), r"argument args\[0\] is a tuple"),
        ({"deep": [1, {"er": (1,)}]}, r"argument args\[0\]\['deep'\]\[1\]\['er'\] is a tuple"),
        ({1, 2}, r"argument args\[0\] is of type set"),
        (b"bytes", r"argument args\[0\] is of type bytes"),
        ({1: "a"}, r"argument args\[0\] has the key 1: JSON's keys are text"),
        ({None: "a"}, r"argument args\[0\] has the key None"),
        (datetime(2030, 1, 1, tzinfo=UTC), r"argument args\[0\] is of type datetime"),
        (UUID(int=1), r"argument args\[0\] is of type UUID"),
        (Decimal("1.5"), r"argument args\[0\] is of type Decimal"),
        (object(), r"argument args\[0\] is of type object"),
        ([float("nan")], r"argument args\[0\]\[0\] is nan, which JSON does not have"),
        (float("inf"), r"argument args\[0\] is inf"),
        (-float("inf"), r"argument args\[0\] is -inf"),
        ("a\0b", r"argument args\[0\] contains a NUL"),
        ({"a\0b": 1}, r"a key of argument args\[0\] contains a NUL"),
        ("\ud800", r"argument args\[0\] contains a lone surrogate"),
        ({"\udfff": 1}, r"a key of argument args\[0\] contains a lone surrogate"),
        (nested(100_000), "is nested too deeply"),
        ("x" * 1_048_576, r"have 1,048,580 bytes, over the limit of 1,048,576 \(max_args_bytes\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_that_is_no_json_is_refused_by_its_path_and_nothing_is_written(app, count, value, said):
    with pytest.raises(outlive.BadArguments, match=said) as raised:
        take.enqueue(value)
    assert len(str(raised.value)) < 500
    with pytest.raises(outlive.BadArguments, match=said):
        asyncio.run(take.aenqueue(value))
    assert count() == 0


@pytest.mark.parametrize(
    "value",
    [
        *(2**70, -(2**70), 5e-324, -0.0, 1e308, "", "\\u0000", "é\u2028\U0001f40d\x01", {}, [], {"": None}),
        *(nested(150), "x" * 1_048_572),
    ],
    ids=lambda value: str(value)[:20].encode("unicode_escape").decode(),
)
def test_json_arguments_arrive_unchanged(app, queue, value):
    job = take.enqueue(value)
    claimed = queue.claim_job(job.id)
    (stored,) = queue.execute("select args::text from outlive.jobs where id = %s", [job.id]).fetchall()
    args, kwargs = take.codec.unpack(stored[0].encode())
    assert claimed.args in (stored[0].encode(), None)  # Large arguments are fetched by the job's process.
    assert (args, kwargs) == ([value], {})
    assert type(args[0]) is type(value)


T = TypeVar("T")


@dataclass
class Crate(Generic[T]):
    inside: T


@app.task
def open_crates(one: Crate[int], perhaps: Crate[int] | None = None, more: Sequence[Crate[int]] = ()) -> None: ...


@pytest.mark.parametrize(
    ("place", "crates"),
    [("one", [Crate("x")]), ("perhaps", [Crate(1), Crate("x")]), (r"more\[0\]", [Crate(1), None, [Crate("x")]])],
)
def test_a_wrong_part_of_a_generic_class_is_named(place, crates):
    with pytest.raises(outlive.BadArguments, match=rf"argument {place}\.inside: expected int, got str"):
        open_crates.job(*crates)
