"""The arguments and the result of a task as JSON: bound to the function's parameters, and as its annotations say.

What a codec needs of annotations is made when it is first used: they may name what comes later in their module. The
zygote makes it before it forks. Then the arguments of most jobs are decoded and checked by one decoder, in C.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from outlive import wire
from outlive.errors import BadArguments
from outlive.forms import (
    PLAIN,
    UNFIT,
    Form,
    change,
    dict_decoder,
    encode,
    encode_simple,
    form_of,
    in_words,
    struct_decoder,
)
from outlive.wire import NUL

POSITIONAL = "*"
"""The key for positional arguments beside keyword ones; no parameter of a function can have this name."""
RESULT = "the result"

_KIND = inspect.Parameter
_BY_POSITION = (_KIND.POSITIONAL_ONLY, _KIND.POSITIONAL_OR_KEYWORD)
_BY_NAME = (_KIND.POSITIONAL_OR_KEYWORD, _KIND.KEYWORD_ONLY)
_whole = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])

T = TypeVar("T")


class _Made(msgspec.Struct, frozen=True):
    """What a codec makes of its function's annotations."""

    forms: dict[str, Form]
    result: Form
    missing: list[Callable[[], bool]]
    """For each name in the annotations that was missing, whether it still is."""
    sort: bool
    closely: list[str]
    """The parameters that are compared part by part."""
    closed: dict[str, Form]
    """The parameters whose JSON may have keys that decoding would drop."""
    checker: msgspec.json.Decoder[Any] | None
    """Decodes all arguments at once, to compare them. None: they must be compared one by one."""
    decoder: msgspec.json.Decoder[Any] | None
    """One decoder for all arguments of a job. None: they must be decoded one by one."""


class Codec:
    """How the arguments of one task become JSON and come back, and its result."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task, self._function = task, function
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._kinds = {name: parameter.kind for name, parameter in parameters.items()}
        self._all_plain = set(self._kinds.values()) <= set(_BY_NAME)
        """As for most functions: then their arguments need not be split."""
        self._by_position = [name for name, kind in self._kinds.items() if kind in _BY_POSITION]
        self._by_name = {name for name, kind in self._kinds.items() if kind in _BY_NAME}
        self._required = {name for name, one in parameters.items() if one.default is _KIND.empty}
        self._optional = [name for name in parameters if name not in self._required]
        all_by_either = set(self._kinds.values()) <= {_KIND.POSITIONAL_OR_KEYWORD}
        self._all_by_position = len(parameters) if all_by_either else -1
        """How many arguments there are if all are given by position, and can be given by name."""
        self._made: _Made | None = None
        self._complete: _Made | None = None
        """The same, unless a name in the annotations is missing."""

    def make(self) -> _Made:
        """Make what depends on annotations, also again if a name that was missing is there now."""
        if self._made is None or not all(missing() for missing in self._made.missing):
            self._made = made = self._make()
            self._complete = None if made.missing else made
        return self._made

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as JSON, by name where possible: it does not matter whether they were given by position.

        They are decoded again: a job gets what was given, or nothing is enqueued.
        """
        made = self._complete or self.make()
        bound = self._bind(args, kwargs)
        whole = bound if self._all_plain else _joined(*self._split(bound))
        if made.checker is not None:
            try:
                data = encode(whole, sort=True) if made.sort else encode_simple(whole)
                decoded = made.checker.decode(data)
                closely = made.closely
                if decoded == whole and NUL not in data and not (closely and _differ(closely, bound, decoded)):
                    return data
            except Exception:
                pass  # `_pack_each` finds what is wrong, if anything is.
        return self._pack_each(bound, made)

    def _pack_each(self, bound: dict[str, Any], made: _Made) -> bytes:
        """Compare the arguments with what they are decoded to, one by one. Equality is not always the same thing."""
        positional, named = ([], bound) if self._all_plain else self._split(bound)
        for name, form, value in self._places(made.forms, positional, named):
            if fault := form.fault(value, f"argument {name}"):
                raise BadArguments(f"{self._task} can't be enqueued: {fault}")
        try:
            return encode(_joined(positional, named), sort=made.sort)
        except UNFIT as error:  # Such as arguments that are nested almost too deeply.
            raise BadArguments(f"{self._task} can't be enqueued: its arguments are no JSON: {error}") from None

    def unpack(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments from JSON: an object, an array, or an object with both.

        Jobs from SQL and from older clients are checked here first. BadArguments says what does not fit.
        """
        made = self._complete or self.make()
        if made.decoder is not None:
            try:
                named: dict[str, Any] = asdict(made.decoder.decode(data))
            except MemoryError:
                raise
            except Exception:  # An array, or arguments that don't fit: classes of the job's own may raise anything.
                return self._unpack_each(data, made.forms)
            for name in self._optional:
                if named[name] is UNSET:
                    del named[name]
            if made.closed:
                _refuse_unknown_keys(made.closed, data, named)
            return [], named
        return self._unpack_each(data, made.forms)

    def encode_result(self, value: object) -> bytes:
        """The result as JSON, as annotated.

        The job has done its work, so a result that is not as annotated is stored too if it is plain JSON. Otherwise
        NotJson says what would change.
        """
        if value is None:
            return b"null"  # As most jobs return, whatever they are annotated with.
        form = (self._complete or self.make()).result
        if form.plain:
            return wire.encode(value, RESULT)
        if not form.closely:
            try:
                data = encode(value, sort=True) if form.sort else encode_simple(value)
                if form.decoder.decode(data) == value and NUL not in data:
                    return data
            except Exception:
                pass  # `fault` finds what is wrong, if anything is.
        if (fault := form.fault(value, RESULT)) is None:
            return encode(value, sort=form.sort)
        try:
            return wire.encode(value, RESULT)
        except wire.NotJson:
            raise wire.NotJson(fault) from None

    def decode_result(self, data: bytes) -> object:
        """The result as the annotation says, or as plain JSON if it is something else."""
        try:
            return self.make().result.decode(data, RESULT)
        except Exception:  # Classes of the user's own may raise anything.
            return wire.decode(data)

    def _make(self) -> _Made:
        parameters = self._signature.parameters.values()
        forms = {one.name: form_of(one.annotation, self._function, one.default) for one in parameters}
        result = form_of(self._signature.return_annotation, self._function)
        checker = decoder = None
        if all(form.plain for form in forms.values()):
            checker = PLAIN.decoder
        elif self._all_plain:
            checker = _or_none(dict_decoder, forms)
        if self._all_plain and not any(name.startswith("__") for name in forms):  # A Struct has no such fields.
            decoder = _or_none(struct_decoder, forms, self._required)
        return _Made(
            forms,
            result,
            missing=[form.missing for form in (*forms.values(), result) if form.missing is not None],
            sort=any(form.sort for form in forms.values()),
            closely=[name for name, form in forms.items() if form.closely],
            closed={name: form for name, form in forms.items() if form.closed},
            checker=checker,
            decoder=decoder,
        )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the names of their parameters. `Signature.bind` is slow, and explains what is wrong."""
        if len(args) == self._all_by_position and not kwargs:
            return dict(zip(self._by_position, args))  # noqa: B905  # strict= would double the time that it takes.
        if self._all_plain and len(args) <= len(self._by_position):
            bound = dict(zip(self._by_position, args, strict=False))
            bound.update(kwargs)
            if len(bound) == len(args) + len(kwargs) and self._required <= bound.keys() <= self._kinds.keys():
                return bound
        return self._bound(args, kwargs).arguments

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            from outlive import words

            options = (words.suggestion(name, ()) for name in kwargs if name not in self._kinds)
            hint = next((f"; for an option of the job, {one}" for one in options if one), "")
            raise BadArguments(f"{self._task} can't be called with these arguments: {error}{hint}") from None

    def _split(self, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a function with positional-only parameters, *args or **kwargs: by position and by name.

        If there are values for *args, all parameters before them go by position.
        """
        positional: list[Any] = []
        named: dict[str, Any] = {}
        by_position = any(self._kinds[name] is _KIND.VAR_POSITIONAL for name in bound)
        for name, value in bound.items():
            match self._kinds[name]:
                case _KIND.VAR_POSITIONAL:
                    positional.extend(value)
                case _KIND.VAR_KEYWORD if POSITIONAL in value:
                    raise BadArguments(f"{self._task} can't be enqueued: no argument can be named {POSITIONAL}")
                case _KIND.VAR_KEYWORD:
                    named |= value
                case _KIND.POSITIONAL_ONLY:
                    positional.append(value)
                case _KIND.POSITIONAL_OR_KEYWORD if by_position:
                    positional.append(value)
                case _:
                    named[name] = value
        return positional, named

    def _unpack_each(self, data: bytes, forms: Mapping[str, Form]) -> tuple[list[Any], dict[str, Any]]:
        """Decode the arguments one by one, which is slower, and tells which one does not fit."""
        path = "the arguments"
        try:
            whole = _whole.decode(data)
            named = {} if isinstance(whole, list) else whole
            positional = whole if isinstance(whole, list) else _list.decode(named.pop(POSITIONAL, b"[]"))
            self._bound(positional, named)
            values = []
            for name, form, value in self._places(forms, positional, named):
                path = f"argument {name}"
                values.append(form.decode(value, path))
        except msgspec.DecodeError as error:
            raise BadArguments(in_words(error, path)) from None
        except (BadArguments, MemoryError):
            raise
        except Exception as error:
            raise BadArguments(f"{path}: {type(error).__name__}: {error}") from error
        count = len(positional)
        return values[:count], dict(zip(named, values[count:], strict=True))

    def _places(
        self, forms: Mapping[str, Form], positional: Sequence[T], named: Mapping[str, T]
    ) -> Iterator[tuple[str, Form, T]]:
        """For each argument, its name in errors, and its form. They can be bound to the function's parameters."""
        variable = {kind: name for name, kind in self._kinds.items()}
        for n, value in enumerate(positional):
            if n < len(self._by_position):
                name = self._by_position[n]
                yield name, forms[name], value
            else:
                more = variable[_KIND.VAR_POSITIONAL]
                yield f"{more}[{n - len(self._by_position)}]", forms[more], value
        for name, value in named.items():
            yield name, forms[name if name in self._by_name else variable[_KIND.VAR_KEYWORD]], value


def _differ(names: list[str], bound: dict[str, Any], decoded: dict[str, Any]) -> bool:
    return any(name in bound and change(bound[name], decoded[name], name) for name in names)


def _refuse_unknown_keys(closed: dict[str, Form], data: bytes, named: dict[str, Any]) -> None:
    plain = cast("dict[str, object]", wire.decode(data))
    for name in closed.keys() & named.keys():
        if unknown := closed[name].unknown_key(plain[name], named[name], f"argument {name}"):
            raise BadArguments(unknown)


def _joined(positional: list[Any], named: dict[str, Any]) -> list[Any] | dict[str, Any]:
    """A list if all arguments go by position, an object if all go by name, or an object with the list in it."""
    return {POSITIONAL: positional, **named} if positional and named else positional or named


def _or_none(make: Callable[..., msgspec.json.Decoder[Any]], *args: object) -> msgspec.json.Decoder[Any] | None:
    """None if an annotation is allowed only on its own: then the arguments are decoded one by one."""
    with contextlib.suppress(Exception):
        return make(*args)
    return None
