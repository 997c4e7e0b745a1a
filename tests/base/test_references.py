"""References in arguments: how they are stored, and how results take their place."""

from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import uuid4

import pytest

from outlive import wire
from outlive.arguments import Codec
from outlive.errors import BadArguments
from outlive.references import MARK, Reference, filled


@dataclass
class Page:
    url: str
    at: date


FIRST, SECOND = uuid4(), uuid4()
PAGE = b'{"url":"u","at":"2030-01-02"}'


def one(page: Page, limit: int = 3, *, day: date | None = None) -> None: ...
def several(pages: list[Page], by_name: dict[str, int] | None = None) -> None: ...
def rest(first: int, /, *more: Any, **named: Any) -> None: ...


def given(function: Any, args: tuple[Any, ...], results: list[bytes | None], **kwargs: Any) -> tuple[Any, Any]:
    """What a job gets whose arguments refer to these results."""
    codec = Codec("m.f", function)
    packed = codec.pack(args, kwargs, needed := [FIRST])
    assert MARK in packed
    assert len(needed) == len(results)
    return codec.unpack(filled(packed, results)[0])


def test_a_reference_becomes_the_result_as_annotated_beside_other_arguments():
    positional, named = given(one, (Reference(FIRST), 7), [PAGE], day=date(2031, 1, 1))
    assert (positional, named) == ([], {"page": Page("u", date(2030, 1, 2)), "limit": 7, "day": date(2031, 1, 1)})


def test_references_stand_in_lists_tuples_and_dicts_beside_plain_values():
    pages = (Reference(FIRST), {"url": "v", "at": "2030-01-03"}, Reference(FIRST))
    _, named = given(several, (pages,), [PAGE, b"8"], by_name={"a": Reference(SECOND), "b": 1})
    assert named["pages"] == [Page("u", date(2030, 1, 2)), Page("v", date(2030, 1, 3)), Page("u", date(2030, 1, 2))]
    assert named["by_name"] == {"a": 8, "b": 1}


def test_references_stand_among_positional_and_unnamed_arguments():
    assert given(rest, (1, [Reference(SECOND)], "x"), [None, b"[5]"], y=Reference(FIRST), z={"is": 1}) == (
        [1, [[5]], "x"],
        {"y": None, "z": {"is": 1}},
    )


def test_each_job_has_one_place_whatever_the_number_of_references():
    needed = [FIRST, FIRST]
    args = ([Reference(SECOND), Reference(FIRST), Reference(SECOND)],)
    packed = Codec("m.f", several).pack(args, {}, needed)
    assert needed == [FIRST, FIRST, SECOND]
    assert wire.decode(packed) == {"$results": {"pages": [2, 0, 2]}}


def test_arguments_without_references_are_what_they_look_like():
    odd = {"$results": {"x": 0}, "of": {"$results": 1}}
    packed = Codec("m.f", rest).pack((1, odd), {}, [FIRST])
    assert filled(packed, [b"2"])[0] == packed
    assert Codec("m.f", rest).unpack(packed) == ([1, odd], {})


@pytest.mark.parametrize("args", [(Page("u", Reference(FIRST)),), ({Reference(FIRST)},), ([Reference(FIRST), {1}],)])  # type: ignore[arg-type]
def test_a_reference_elsewhere_or_beside_what_json_does_not_have_is_refused(args):
    with pytest.raises(BadArguments, match=r"m\.f can't be enqueued: argument pages?"):
        Codec("m.f", several).pack(args, {}, [])


def test_a_name_that_outlive_uses_itself_is_refused():
    with pytest.raises(BadArguments, match=r"no argument can be named \$results"):
        Codec("m.f", rest).pack((1,), {"$results": {"y": 0}}, [])


@pytest.mark.parametrize("template", ["1", "-1", "true", "null", '"x"', '{"of": 3}', "[[5]]"])
def test_a_template_that_stands_for_no_result_is_refused(template):
    with pytest.raises(BadArguments, match="stands for no result: the job waits for 1 jobs"):
        filled(b'{"$results": {"page": %s}}' % template.encode(), [PAGE])


def test_missing_results_become_null_and_are_named():
    args, empty = filled(b'{"$results": {"page": 0, "other": [1, 2]}}', [b"1", None, b"2"])
    assert wire.decode(args) == {"page": 1, "other": [None, 2]}
    assert empty == ["other"]
