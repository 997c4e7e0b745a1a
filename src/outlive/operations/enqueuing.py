"""A job that an operator enqueues: what was typed into a form becomes its arguments, by the signature of its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from string import digits
from typing import Any, TypeVar

import msgspec

from outlive import store
from outlive.arguments import POSITIONAL
from outlive.described import kind_of, signature_of
from outlive.errors import BadArguments, ConfigError
from outlive.model import JobRequest
from outlive.operations import By, Steps
from outlive.policy import Parameter, parse_priority
from outlive.validation import identifier, seconds

T = TypeVar("T")
MAX_ARGS_BYTES = 256 * 1024
TEXTS = frozenset({"str", "UUID", "datetime", "date", "time", "timedelta", "Decimal", "Path", "bytes"})
"""Annotations whose values are written without quotes, and are text in JSON."""
_KINDS: Mapping[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
    "list": (list, "an array as JSON"),
    "dict": (dict, "an object as JSON"),
}


class BadFields(BadArguments):
    """Some fields of a form can't have their values. `fields` says why, for each."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name.removeprefix('arg.')}: {words}" for name, words in fields.items()))
        self.fields = fields


def field_of(parameter: Parameter) -> str:
    """The name of its field, which no option of the job can have."""
    return f"arg.{parameter.name}"


def request(task: Mapping[str, Any], typed: Mapping[str, str], by: By) -> JobRequest:
    """The job that these fields describe. It has the id of its entry in the audit. BadFields: some are wrong."""
    wrong: dict[str, str] = {}

    def read(name: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(typed[name]) if typed.get(name) else None
        except ConfigError as error:
            wrong[name] = str(error)
            return None

    queue = read("queue", lambda text: identifier("queue", text))
    priority = read("priority", lambda text: parse_priority("priority", int(text) if text in [*digits] else text))
    delay_s = read("delay", lambda text: seconds("delay", text))
    signature = signature_of(task["signature"])
    given = {one.name: read(field_of(one), _parser(one)) for one in signature}
    for one in signature:
        if one.required and given[one.name] is None:
            wrong.setdefault(field_of(one), "give a value: it has no default")
    in_order = [one for one in signature if one.positional]
    for one, later in pairwise(in_order):
        if given[later.name] is not None and given[one.name] is None:
            wrong.setdefault(field_of(one), f"give a value: {later.name} can only be given after it")
    if wrong:
        raise BadFields(wrong)
    args: dict[str, Any] = {one.name: given[one.name] for one in signature if not one.positional}
    args[POSITIONAL] = [given[one.name] for one in in_order if given[one.name]]
    args = {name: value for name, value in args.items() if value}
    data = msgspec.json.encode(args)
    return JobRequest(by.entry, task["name"], data, queue=queue, priority=priority, delay_s=delay_s)


def enqueue(job: JobRequest, by: By) -> Steps[None]:
    """Enqueue it. The transaction also writes the audit."""
    yield store.enqueue([job], max_args_bytes=MAX_ARGS_BYTES, notify=True)
    yield store.write_audit(by.entry, who=by.who, action="enqueue", what={"task": job.task, "ids": [job.id]}, jobs=1)


def _parser(parameter: Parameter) -> Callable[[str], msgspec.Raw]:
    """What makes JSON of a text that was typed."""
    kind, optional = kind_of(parameter.annotation)
    expected, words = _KINDS.get(kind, (Any, "JSON: write text in quotes"))

    def parse(text: str) -> msgspec.Raw:
        if kind in TEXTS and not (optional and text == "null"):
            return msgspec.Raw(msgspec.json.encode(text))
        try:
            msgspec.json.decode(text, type=expected | None if optional else expected)
        except (msgspec.MsgspecError, RecursionError):
            raise ConfigError(f"this is not {words}{' or null' if optional else ''}") from None
        return msgspec.Raw(text.encode())

    return parse
