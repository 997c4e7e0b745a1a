"""References: what stands, in the arguments of a job, for the result of another job that it waits for.

`outlive.result_of(job)` makes one. Such arguments have one more key, with a template for each parameter that has one:

    {"limit": 3, "$results": {"page": 0, "rest": [1, {"is": "fixed"}], "named": {"of": {"a": 2}}}}

A number is a place in `after`: it stands for the result of the job there, which the process of the job fills in. A
list, and an object under `of`, hold more templates, and `is` a plain value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from outlive import wire
from outlive.errors import BadArguments

RESULTS = "$results"  # The key of the templates; no parameter of a function can have this name.
MARK = b'"$results"'  # JSON without this has no references.
MOST_LEVELS = 100  # How deeply a reference may be nested.

_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])


class Reference:
    """Stands for the result of a job. Not a struct or a dataclass: these would be written as JSON."""

    __slots__ = ("job",)

    def __init__(self, job: UUID) -> None:
        self.job = job

    def __repr__(self) -> str:
        return f"result_of(<job {self.job}>)"


def within(value: object, level: int = 0) -> bool:
    """Whether a value refers to results, itself or in its lists, tuples and dicts."""
    if isinstance(value, Reference):
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return level < MOST_LEVELS and any(within(one, level + 1) for one in items)


def places(after: list[UUID]) -> Callable[[UUID], int]:
    """A function that returns the place of a job in `after`, and adds those that are missing there."""
    found = {id: n for n, id in reversed([*enumerate(after)])}

    def place(id: UUID) -> int:
        if id not in found:
            found[id] = len(after)
            after.append(id)
        return found[id]

    return place


def template(value: object, path: str, place: Callable[[UUID], int]) -> object:
    """The template of a value. What is no reference in it must be plain JSON: NotJson says what is not."""
    if isinstance(value, Reference):
        return place(value.job)
    if not within(value):
        return {"is": msgspec.Raw(wire.encode(value, path))}
    if isinstance(value, dict):
        if wrong := next((key for key in value if not isinstance(key, str)), None):
            raise wire.NotJson(f"{path} has the key {wrong!r}: beside results, keys are text")
        return {"of": {key: template(one, f"{path}[{key!r}]", place) for key, one in value.items()}}
    assert isinstance(value, list | tuple)
    return [template(one, f"{path}[{n}]", place) for n, one in enumerate(value)]


def filled(args: bytes, results: Sequence[bytes | None]) -> tuple[bytes, list[str]]:
    """The arguments with the results, and the names of those that stand for a result that is missing or None."""
    templates, others = _split(args)
    if not templates:
        return args, []
    values = {name: _filled(one, results) for name, one in templates.items()}
    empty = [name for name, one in templates.items() if any(results[place] is None for place in _places(one))]
    return msgspec.json.encode(others | values, order="sorted"), empty


def sources(args: bytes) -> dict[str, list[int]]:
    """For each parameter that refers to results, the places of the jobs in `after`."""
    return {name: [*_places(one)] for name, one in _split(args)[0].items()}


def _split(args: bytes) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The templates, and the other arguments."""
    try:
        whole = _arguments.decode(args)
        others = {} if isinstance(whole, list) else whole
        templates = wire.decode(others.pop(RESULTS, b"{}"))
    except (ValueError, RecursionError) as error:
        raise BadArguments(wire.in_words(error, "the arguments")) from None
    return templates if isinstance(templates, dict) else {"": templates}, others


def _filled(template: object, results: Sequence[bytes | None]) -> object:
    match template:
        case int() if not isinstance(template, bool) and 0 <= template < len(results):
            return msgspec.Raw(results[template] or b"null")
        case list():
            return [_filled(one, results) for one in template]
        case {"of": dict() as parts}:
            return {key: _filled(one, results) for key, one in parts.items()}
        case {"is": value}:
            return value
    raise BadArguments(
        f"{RESULTS} of the arguments has {template!r:.100}, which stands for no result: the job waits for"
        f" {len(results)} jobs"
    )


def _places(template: object) -> Iterator[int]:
    match template:
        case int():
            yield template
        case list():
            for one in template:
                yield from _places(one)
        case {"of": dict() as parts}:
            yield from _places([*parts.values()])
