"""The arguments and the result of a task as JSON: bound to the function's parameters, and as its annotations say.

What a codec needs of annotations is made when it is first used: they may name what comes later in their module. The
zygote makes it before it forks. Then the arguments of most jobs are decoded and checked by one decoder, in C.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from outlive import references, wire
from outlive.annotations import Form, form_of, namespace, without_objects
from outlive.encoding import encode_simple, from_json
from outlive.errors import BadArguments
from outlive.policy import Parameter

POSITIONAL = "*"  # The key for positional arguments beside keyword ones; no parameter of a function can have this name.
RESULT = "the result"
SHOWN_CHARS = 200  # The longest annotation or default that a form shows.

_KIND = inspect.Parameter
_BY_POSITION = (_KIND.POSITIONAL_ONLY, _KIND.POSITIONAL_OR_KEYWORD)
_REST = (_KIND.VAR_POSITIONAL, _KIND.VAR_KEYWORD)
_BY_NAME = (_KIND.POSITIONAL_OR_KEYWORD, _KIND.KEYWORD_ONLY)
_whole = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])

T = TypeVar("T")


class _Made(msgspec.Struct, frozen=True):
    """What a codec makes of its function's annotations."""

    forms: dict[str, Form]
    result: Form
    checker: msgspec.json.Decoder[Any] | None
    """Decodes all arguments to a dict, which is compared with them. None: they must be encoded one by one."""
    decoder: msgspec.json.Decoder[Any] | None
    """Decodes all arguments, and refuses unknown and missing ones. None: they must be decoded one by one."""
    closely: bool  # This and the next as in the forms: whether any of them is so.
    closed: bool
    names: int  # How many names the function's module had, if one in the annotations was missing: it may come later.


class Codec:
    """How the arguments of one task become JSON and come back, and its result."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task, self._function = task, function
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._kinds = {name: one.kind for name, one in parameters.items()}
        self._by_position = [name for name, kind in self._kinds.items() if kind in _BY_POSITION]
        self._required = {name for name, one in parameters.items() if one.default is _KIND.empty}
        self._optional = [name for name in parameters if name not in self._required]
        self._all_by_name = all(kind in _BY_NAME for kind in self._kinds.values())
        by_position = self._all_by_name and self._required <= set(self._by_position)
        self._fewest = len(self._required) if by_position else len(parameters) + 1
        """How many arguments are enough if all are given by position, and can be given by name."""
        self._namespace = namespace(function)
        self._made: _Made | None = None

    def make(self) -> _Made:
        """Make what depends on annotations, also again if a name was missing and the module has more names now."""
        if self._made is None or self._made.names not in (0, len(self._namespace)):
            self._made = self._make()
        return self._made

    def _make(self) -> _Made:
        parameters = self._signature.parameters.values()
        forms = {one.name: form_of(one.annotation, self._function, one.default) for one in parameters}
        result = form_of(self._signature.return_annotation, self._function)
        checker = decoder = None
        if self._all_by_name and not any(form.sort for form in forms.values()):
            with contextlib.suppress(Exception):  # Some annotations, and some names, can't be those of a field.
                checker, decoder = self._decoders({name: form.hint for name, form in forms.items()})
        return _Made(
            forms,
            result,
            checker,
            decoder,
            closely=any(form.closely for form in forms.values()),
            closed=any(form.closed for form in forms.values()),
            names=len(self._namespace) if any(form.missing for form in (*forms.values(), result)) else 0,
        )

    def _decoders(self, hints: Any) -> tuple[msgspec.json.Decoder[Any], ...]:
        """The checker, and the decoder: to an object, in which arguments that are missing are UNSET."""
        defaults = {name: msgspec.NODEFAULT if name in self._required else UNSET for name in hints}
        fields = [(name, hint, msgspec.field(default=defaults[name])) for name, hint in hints.items()]
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
        typed_dict = typing.TypedDict("Arguments", hints, total=False)  # type: ignore[misc]
        return tuple(msgspec.json.Decoder(one, dec_hook=from_json) for one in (typed_dict, struct))

    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters as a form shows them, without *args and **kwargs."""
        return tuple(self._shown(one) for one in self._signature.parameters.values() if one.kind not in _REST)

    def _shown(self, one: inspect.Parameter) -> Parameter:
        text = default = ""
        with contextlib.suppress(Exception):  # An annotation is the user's code, and may be anything.
            text = one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
        if one.default is not _KIND.empty:
            with contextlib.suppress(wire.NotJson):
                default = self.make().forms[one.name].encode(one.default, one.name).decode()
        return Parameter(
            one.name,
            annotation=text[:SHOWN_CHARS] if one.annotation is not _KIND.empty and text.isprintable() else "",
            required=one.name in self._required,
            positional=one.kind is _KIND.POSITIONAL_ONLY,
            default=default if 0 < len(default) <= SHOWN_CHARS else None,
        )

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any], needed: list[UUID] | None = None) -> bytes:
        """The arguments as JSON, by name where possible. A job gets what was given, or nothing is enqueued.

        With the jobs that it waits for they may refer to results: jobs that are missing in the list are added to it.
        """
        made = self._made
        if made is None or made.names:
            made = self.make()
        bound = self._bind(args, kwargs)
        if made.checker is not None:
            try:
                data = encode_simple(bound)
                decoded = made.checker.decode(data)
                if made.closely:
                    same = all(made.forms[name].same(value, decoded[name]) for name, value in bound.items())
                else:
                    same = decoded == bound
                if same and wire.NUL not in data:
                    return data
            except Exception:
                pass  # Encoding the arguments one by one finds what is wrong, if anything is.
        try:
            if needed is not None and references.within([*bound.values()]):
                return self._pack_references(bound, references.places(needed))
            positional, named = self._each(Form.encode, bound)
        except wire.NotJson as error:
            raise BadArguments(f"{self._task} can't be enqueued: {error}") from None
        raw: dict[str, Any] = {name: msgspec.Raw(one) for name, one in self._checked(named).items()}
        if positional:
            raw[POSITIONAL] = [*map(msgspec.Raw, positional)]
        return encode_simple(raw if named else raw.get(POSITIONAL, {}))

    def _pack_references(self, bound: Mapping[str, Any], place: Callable[[UUID], int]) -> bytes:
        """The same for arguments some of which refer to results. Type checkers have compared these; the job does."""

        def encode(form: Form, value: Any, path: str) -> object:
            """JSON, or a template."""
            if references.within(value):
                return references.template(value, path, place)
            return msgspec.Raw(form.encode(value, path))

        positional, named = self._each(encode, bound)
        raw = {name: one for name, one in self._checked(named).items() if isinstance(one, msgspec.Raw)}
        templates = {name: one for name, one in named.items() if name not in raw}
        if positional:
            templates[POSITIONAL] = [{"is": one} if isinstance(one, msgspec.Raw) else one for one in positional]
        return encode_simple({**raw, references.RESULTS: templates})

    def _checked(self, named: dict[str, T]) -> dict[str, T]:
        for key in (POSITIONAL, references.RESULTS):
            if key in named:
                raise BadArguments(f"{self._task} can't be enqueued: no argument can be named {key}")
        return named

    def unpack(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments from JSON: an object, an array, or an object with both. BadArguments says what
        does not fit: jobs from SQL and from older clients are checked here first."""
        made = self.make()
        if made.decoder is not None:
            try:
                named = asdict(made.decoder.decode(data))
                for name in self._optional:
                    if named[name] is UNSET:
                        del named[name]
                if not made.closed or encode_simple(named) == data:  # Otherwise a key may have got lost.
                    return [], named
            except MemoryError:
                raise
            except Exception:
                pass  # An array, or arguments that don't fit: classes of the job's own may raise anything.
        try:
            whole = _whole.decode(data)
            named = {} if isinstance(whole, list) else whole
            positional = whole if isinstance(whole, list) else _list.decode(named.pop(POSITIONAL, b"[]"))
        except (ValueError, RecursionError) as error:
            raise BadArguments(wire.in_words(error, "the arguments")) from None
        return self._each(Form.decode, self._bound(positional, named))

    def encode_result(self, value: object) -> bytes:
        """The result as JSON. NotJson says what would change."""
        return self.kept(value)[0]

    def kept(self, value: object) -> tuple[bytes, str]:
        """The result as annotated, or else as plain JSON, because the job has done its work, and what is not as
        annotated. NotJson if something of it would get lost."""
        if value is None:
            return b"null", ""  # Most jobs return None, also those that are annotated with something else.
        try:
            return self.make().result.encode(value, RESULT), ""
        except wire.NotJson as fault:
            with contextlib.suppress(Exception):  # Classes of the user's own may raise anything.
                return wire.encode(without_objects(value), RESULT), str(fault)
            raise fault from None

    def unused_result(self) -> str:
        """What to tell before the first job runs if the annotation of the result is not used, or an empty text."""
        if not (unused := self.make().result.unused):
            return ""
        text = self._signature.return_annotation
        shown = text if isinstance(text, str) else inspect.formatannotation(text)
        return f"{self._task} returns {shown[:SHOWN_CHARS]}, and {unused}: it comes out as plain JSON"

    def decode_result(self, data: bytes) -> object:
        """The result as the annotation says, or as plain JSON if it is something else."""
        try:
            return self.make().result.decode(data, RESULT)
        except Exception:  # Classes of the user's own may raise anything.
            return wire.decode(data)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the names of their parameters. `Signature.bind` is slow, and explains what is wrong."""
        if not kwargs and self._fewest <= len(args) <= len(self._by_position):
            return dict(zip(self._by_position, args))  # noqa: B905  # strict= would double the time that it takes.
        if self._all_by_name and len(args) <= len(self._by_position):
            bound = dict(zip(self._by_position, args, strict=False)) | kwargs
            if len(bound) == len(args) + len(kwargs) and self._required <= bound.keys() <= self._kinds.keys():
                return bound
        return self._bound(args, kwargs)

    def _bound(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            from outlive import foreign_options

            options = (foreign_options.suggestion(name, ()) for name in kwargs if name not in self._kinds)
            hint = next((f"; for an option of the job, {one}" for one in options if one), "")
            raise BadArguments(f"{self._task} can't be called with these arguments: {error}{hint}") from None

    def _each(self, convert: Callable[[Form, Any, str], T], bound: Mapping[str, Any]) -> tuple[list[T], dict[str, T]]:
        """Convert every argument by its form, and return them by position and by name: by name where possible. If there
        are values for *args, all parameters before them go by position."""
        forms, positional, named = self.make().forms, list[T](), dict[str, T]()
        has_rest = any(self._kinds[name] is _KIND.VAR_POSITIONAL for name in bound)
        for name, value in bound.items():
            form, kind = forms[name], self._kinds[name]
            if kind is _KIND.VAR_POSITIONAL:
                positional += [convert(form, one, f"argument {name}[{n}]") for n, one in enumerate(value)]
            elif kind is _KIND.VAR_KEYWORD:
                named |= {key: convert(form, one, f"argument {key}") for key, one in value.items()}
            elif kind is _KIND.POSITIONAL_ONLY or (has_rest and kind is _KIND.POSITIONAL_OR_KEYWORD):
                positional.append(convert(form, value, f"argument {name}"))
            else:
                named[name] = convert(form, value, f"argument {name}")
        return positional, named
