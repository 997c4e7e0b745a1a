"""The arguments and the result of a task as JSON: bound to the function's parameters, and as its annotations say.

What a codec needs of annotations is made when it is first used: they may name what comes later in their module. The
zygote makes it before it forks. Then the arguments of most jobs are decoded and checked by one decoder, in C.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from outlive import wire
from outlive.annotations import PLAIN, Form, decoders, encode, encode_simple, encodes_to, form_of, namespace
from outlive.errors import BadArguments
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
    decoder: msgspec.json.Decoder[Any] | None
    """One decoder for all arguments of a job. None: they must be decoded one by one."""
    checker: msgspec.json.Decoder[Any] | None
    """Decodes all arguments to what they are compared with. None: they must be compared one by one."""
    names: int | None
    """How many names the function's module had, if one in the annotations was missing: it may come later."""
    sort: bool
    closely: bool
    closed: bool


class Codec:
    """How the arguments of one task become JSON and come back, and its result."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task, self._function = task, function
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._kinds = {name: parameter.kind for name, parameter in parameters.items()}
        self._variable = {kind: name for name, kind in self._kinds.items()}
        """The names of *args and **kwargs."""
        self._by_position = [name for name, kind in self._kinds.items() if kind in _BY_POSITION]
        self._all_by_name = set(self._kinds.values()) <= set(_BY_NAME)
        """All arguments can be given by name, as with most functions."""
        self._all_by_position = (
            len(parameters) if self._all_by_name and len(self._by_position) == len(parameters) else -1
        )
        """How many arguments there are if all are given by position, and can be given by name."""
        self._required = {name for name, one in parameters.items() if one.default is _KIND.empty}
        self._optional = [name for name in parameters if name not in self._required]
        self._names = namespace(function)
        self._made: _Made | None = None
        self._complete: _Made | None = None
        """The same, unless a name in the annotations is missing."""

    def make(self) -> _Made:
        """Make what depends on annotations, also again if a name was missing and the module has more names now."""
        if self._made is None or self._made.names not in (None, len(self._names)):
            self._made = made = self._make()
            self._complete = made if made.names is None else None
        return self._made

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as JSON, by name where possible: it does not matter whether they were given by position.

        They are decoded again: a job gets what was given, or nothing is enqueued.
        """
        made = self._complete or self.make()
        bound = self._bind(args, kwargs)
        whole = bound if self._all_by_name else _joined(*self._split(bound))
        if made.checker is not None:
            try:
                data = encode(whole, sort=True) if made.sort else encode_simple(whole)
                decoded = made.checker.decode(data)
                if made.closely:
                    same = all(made.forms[name].same(value, decoded[name]) for name, value in bound.items())
                else:
                    same = decoded == whole
                if same and NUL not in data:
                    return data
            except Exception:
                pass  # Encoding the arguments one by one finds what is wrong, if anything is.
        try:
            positional, named = self._each(Form.encode, *self._split(bound))
        except wire.NotJson as error:
            raise BadArguments(f"{self._task} can't be enqueued: {error}") from None
        raw = {name: msgspec.Raw(one) for name, one in named.items()}
        return encode_simple(_joined([*map(msgspec.Raw, positional)], raw))

    def unpack(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments from JSON: an object, an array, or an object with both.

        Jobs from SQL and from older clients are checked here first. BadArguments says what does not fit.
        """
        made = self._complete or self.make()
        if made.decoder is not None:
            try:
                named: dict[str, Any] = asdict(made.decoder.decode(data))
                for name in self._optional:
                    if named[name] is UNSET:
                        del named[name]
                if not made.closed or encodes_to(data, named, sort=made.sort):
                    return [], named
            except MemoryError:
                raise
            except Exception:
                pass  # An array, or arguments that don't fit: classes of the job's own may raise anything.
        return self._unpack_each(data)

    def encode_result(self, value: object) -> bytes:
        """The result as JSON, as annotated.

        The job has done its work, so a result that is not as annotated is stored too if it is plain JSON. Otherwise
        NotJson says what would change.
        """
        if value is None:
            return b"null"  # Most jobs return None, also those that are annotated with something else.
        try:
            return self.make().result.encode(value, RESULT)
        except wire.NotJson as fault:
            with contextlib.suppress(wire.NotJson):
                return wire.encode(value, RESULT)
            raise fault from None

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
        decoder, checker = None, PLAIN.decoder if all(form.plain for form in forms.values()) else None
        if self._all_by_name and not any(name.startswith("__") for name in forms):  # A Struct has no such fields.
            with contextlib.suppress(Exception):  # Some annotations are allowed only on their own.
                decoder, checker = decoders(forms, self._required)
        return _Made(
            forms,
            result,
            decoder,
            checker,
            names=len(self._names) if any(form.missing for form in (*forms.values(), result)) else None,
            sort=any(form.sort for form in forms.values()),
            closely=any(form.closely for form in forms.values()),
            closed=any(form.closed for form in forms.values()),
        )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the names of their parameters. `Signature.bind` is slow, and explains what is wrong."""
        if len(args) == self._all_by_position and not kwargs:
            return dict(zip(self._by_position, args))  # noqa: B905  # strict= would double the time that it takes.
        if self._all_by_name and len(args) <= len(self._by_position):
            bound = dict(zip(self._by_position, args, strict=False))
            bound.update(kwargs)
            if len(bound) == len(args) + len(kwargs) and self._required <= bound.keys() <= self._kinds.keys():
                return bound
        return self._bound(args, kwargs).arguments

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            from outlive import foreign_options

            options = (foreign_options.suggestion(name, ()) for name in kwargs if name not in self._kinds)
            hint = next((f"; for an option of the job, {one}" for one in options if one), "")
            raise BadArguments(f"{self._task} can't be called with these arguments: {error}{hint}") from None

    def _split(self, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by position and by name: by name where possible.

        If there are values for *args, all parameters before them go by position.
        """
        named = dict(bound)
        more = named.pop(self._variable.get(_KIND.VAR_POSITIONAL, ""), ())
        others = named.pop(self._variable.get(_KIND.VAR_KEYWORD, ""), {})
        if POSITIONAL in others:
            raise BadArguments(f"{self._task} can't be enqueued: no argument can be named {POSITIONAL}")
        first = [name for name in self._by_position if name in named and (more or self._kinds[name] not in _BY_NAME)]
        return [*(named.pop(name) for name in first), *more], named | others

    def _unpack_each(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Decode the arguments one by one, which is slower, and tells which one does not fit."""
        try:
            whole = _whole.decode(data)
            named = {} if isinstance(whole, list) else whole
            positional = whole if isinstance(whole, list) else _list.decode(named.pop(POSITIONAL, b"[]"))
        except (ValueError, RecursionError) as error:
            raise BadArguments(wire.in_words(error, "the arguments")) from None
        self._bound(positional, named)
        return self._each(Form.decode, positional, named)

    def _each(
        self, convert: Callable[[Form, Any, str], T], positional: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[T], dict[str, T]]:
        """Convert every argument by its form. The arguments can be bound to the function's parameters."""
        forms = self.make().forms
        more, others = (self._variable.get(kind, "") for kind in (_KIND.VAR_POSITIONAL, _KIND.VAR_KEYWORD))
        places = chain(((name, name) for name in self._by_position), ((more, f"{more}[{n}]") for n in count()))
        by_name = ((name if self._kinds.get(name) in _BY_NAME else others, name, one) for name, one in named.items())
        return (
            [
                convert(forms[name], one, f"argument {path}")
                for one, (name, path) in zip(positional, places, strict=False)
            ],
            {path: convert(forms[name], one, f"argument {path}") for name, path, one in by_name},
        )


def _joined(positional: list[Any], named: dict[str, Any]) -> list[Any] | dict[str, Any]:
    """A list if all arguments go by position, an object if all go by name, or an object with the list in it."""
    return {POSITIONAL: positional, **named} if positional and named else positional or named
