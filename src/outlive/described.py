"""What workers have described of the parameters of tasks: forms make their fields of it, and arguments that come
without the code of their task are compared with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outlive import wire
from outlive.arguments import POSITIONAL
from outlive.errors import BadArguments
from outlive.policy import Parameter

_OPTIONAL = re.compile(r"(?:typing\.)?Optional\[(.*)\]|(.*?) *\| *None")
_PARTS = re.compile(r"\[[^\[\]]*\]")
_PLAIN: Mapping[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
_whole = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])


def signature_of(data: bytes) -> tuple[Parameter, ...]:
    """The parameters, as a worker has written them."""
    return msgspec.json.decode(data, type=tuple[Parameter, ...])


def kind_of(annotation: str) -> tuple[str, bool]:
    """The class that an annotation names, without its module and its parts, and whether None fits too."""
    words, optional = _words(annotation)
    return words.rpartition(".")[2], optional


def _words(annotation: str) -> tuple[str, bool]:
    found = _OPTIONAL.fullmatch(annotation)
    words = (found[1] or found[2]) if found else annotation
    while (fewer := _PARTS.sub("", words)) != words:
        words = fewer
    return words, found is not None


def expect_fitting(task: str, signature: Sequence[Parameter], args: bytes) -> None:
    """BadArguments if the task would refuse these arguments, which are JSON.

    Only what is certain is refused. A description says nothing of *args and **kwargs, and other names than those of
    plain classes may stand for anything.
    """
    whole = _whole.decode(args)
    by_name = whole if isinstance(whole, dict) else {}
    by_position = whole if isinstance(whole, list) else _list.decode(by_name.get(POSITIONAL, b"[]"))
    values = [(one, by_name.get(one.name)) for one in signature if not one.positional]
    values += [
        (one, value)
        for one, value in zip(signature, by_position, strict=False)
        if one.positional or (one.required and one.name not in by_name)  # Others may come after *args.
    ]
    for one, value in values:
        if value is not None and (why := _misfit(one, value)):
            raise BadArguments(f"{task} can't be enqueued: {why}")
    for one in signature[len(by_position) :]:
        if one.required and (one.positional or one.name not in by_name):
            words = f"missing a required argument: {one.name!r}"
            raise BadArguments(f"{task} can't be called with these arguments: {words}")


def _misfit(parameter: Parameter, value: msgspec.Raw) -> str:
    """Why a value, which is JSON, does not fit; empty if it may."""
    words, optional = _words(parameter.annotation)
    if (kind := _PLAIN.get(words)) is None:
        return ""
    try:
        msgspec.json.decode(value, type=kind | None if optional or parameter.default == "null" else kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        return wire.in_words(error, f"argument {parameter.name}")
    return ""
