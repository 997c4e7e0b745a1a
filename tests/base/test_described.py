"""Arguments that come without the code of their task are compared with what a worker has described of it."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Literal, Optional

import msgspec
import pytest

from outlive.arguments import Codec
from outlive.described import expect_fitting, kind_of
from outlive.errors import BadArguments


def report(kind: str, most: int = 3, *, part: float | None = None) -> None: ...
def rest(kind: str, *others: int, most: str = "x", **more: str) -> None: ...
def positional(a: int, b: str = "x", /, **more: list[int]) -> None: ...
def implicit(a: int = None, b: Optional[bool] = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013, UP045
def either(a: list[int] | str, b: dict[str, list[int]] | None = None) -> None: ...
def strange(a: Literal["x", 3], b: "bytes" = b"", c=None) -> None: ...  # type: ignore[no-untyped-def]


TASKS = (report, rest, positional, implicit, either, strange)
VALUES: tuple[Any, ...] = ("x", 3, 3.0, 3.5, True, None, [], [3], {}, {"x": [3]})
NAMES = ("kind", "most", "part", "others", "more", "a", "b")


def arguments() -> list[Any]:
    """Many arguments: by name, by position, and in both ways."""
    by_name = [{}, *({name: value} for name, value in product(NAMES, VALUES))]
    by_name += [{"kind": "x", name: value} for name, value in product(NAMES, VALUES)]
    by_name += [{"a": 3, name: value} for name, value in product(NAMES, VALUES)]
    by_position = [[], *([value] for value in VALUES), *map(list, product(VALUES, repeat=2))]
    by_position += [["x", 3, value] for value in VALUES]
    both = [{**named, "*": values} for named, values in product(by_name[::7], by_position[::5])]
    return [*by_name, *by_position, *both]


def refusal(check: Callable[[], object]) -> str:
    try:
        check()
    except BadArguments as error:
        return str(error)
    return ""


@pytest.mark.parametrize("function", TASKS)
def test_nothing_is_refused_that_the_task_takes(function):
    codec, refused = Codec("task", function), 0
    for given in arguments():
        data = msgspec.json.encode(given)
        why = refusal(partial(expect_fitting, "task", codec.parameters(), data))
        assert not why or refusal(partial(codec.unpack, data)), (given, why)
        refused += bool(why)
    assert refused


@pytest.mark.parametrize(
    ("function", "given", "reason"),
    [
        (report, {"kind": 3}, "task can't be enqueued: argument kind: expected str, got int"),
        (report, [3], "task can't be enqueued: argument kind: expected str, got int"),
        (report, {"kind": "x", "part": "y"}, "task can't be enqueued: argument part: expected float | null, got str"),
        (report, {}, "task can't be called with these arguments: missing a required argument: 'kind'"),
        (positional, {"*": [1, 2]}, "task can't be enqueued: argument b: expected str, got int"),
        (rest, {"kind": "x", "most": 3}, "task can't be enqueued: argument most: expected str, got int"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_task(function, given, reason):
    with pytest.raises(BadArguments) as caught:
        expect_fitting("task", Codec("task", function).parameters(), msgspec.json.encode(given))
    assert str(caught.value) == reason


def test_a_union_of_classes_is_of_no_kind():
    kinds = [kind_of(words) for words in ("list[int] | str", "list[a.b[c]] | None", "typing.Optional[dt.date]")]
    assert kinds == [("list | str", False), ("list", True), ("date", True)]
