"""Importing an app by its name, `pkg.module:app`, for children and for commands. AppNotFound says why that failed."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Protocol, cast

from outlive.errors import AppNotFound
from outlive.stacks import is_theirs

OURS = ("<", os.path.dirname(os.path.abspath(__file__)) + os.sep)
MAX_REASON_CHARS = 500
MAX_TRACEBACK_CHARS = 16_000


class App(Protocol):
    """What a worker needs of an outlive.App. This layer can't import the class itself."""

    @property
    def tasks(self) -> Mapping[str, Any]: ...
    @property
    def sources(self) -> Mapping[str, Any]: ...
    @property
    def declared_schedules(self) -> Mapping[str, Any]: ...
    @property
    def settings(self) -> Mapping[str, object]: ...
    @property
    def process_starts(self) -> Sequence[FunctionType]: ...
    @property
    def lifespans(self) -> Sequence[FunctionType]: ...


def full_name(target: str) -> str:
    """`pkg.module:app`, also if only `pkg.module` is given."""
    name, _, attribute = target.partition(":")
    return f"{name}:{attribute or 'app'}"


def import_app(target: str) -> App:
    """Import `pkg.module:app`; modules in the current directory come first."""
    name, _, attribute = full_name(target).partition(":")
    if not name or "/" in name or name.endswith(".py"):
        module_name = name.removesuffix(".py").strip("./").replace("/", ".") or "pkg.module"
        raise AppNotFound(f"{name!r} is not the name of a module: write it like {module_name}:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(name)
    if not hasattr(module, attribute):
        apps = sorted(key for key, value in vars(module).items() if _is_app(value))
        others = f"its apps are {', '.join(apps)}" if apps else "it has no outlive.App at all"
        raise AppNotFound(f"the module {name} has nothing named {attribute}: {others}")
    found: object = getattr(module, attribute)
    if not _is_app(found):
        raise AppNotFound(f"{name}:{attribute} is of type {type(found).__name__}, not an outlive.App")
    return cast("App", found)


def _is_app(value: object) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("tasks", "sources", "settings"))


def _import(name: str) -> ModuleType:
    pid = os.getpid()
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or os.getpid() != pid:  # A copy that the module has forked.
            raise
        seen = traceback.TracebackException.from_exception(error)
        _drop_importlib(seen)
        if not seen.stack and isinstance(error, ModuleNotFoundError):
            raise AppNotFound(_not_found(name, error.name or name)) from None
        raise AppNotFound(_reason(name, seen), "".join(seen.format())[-MAX_TRACEBACK_CHARS:]) from None


def _not_found(name: str, missing: str) -> str:
    module = f"there is no module {missing}" + ("" if missing == name else f" (for {name})")
    here = os.getcwd()
    others = [place for place in sys.path if place not in ("", here)]
    return (
        f"{module}: tried {here} (the current directory) and {len(others)} more places of sys.path, "
        f"first {others[0]}; run it where the module is, or set PYTHONPATH"
    )


def _reason(name: str, seen: traceback.TracebackException) -> str:
    """One line: the file and line in the user's own code, and the error."""
    lines = list(seen.format_exception_only())
    if isinstance(seen.exc_type, type) and issubclass(seen.exc_type, SyntaxError):
        where, error = f"{short(seen.filename or name)}, line {seen.lineno}", lines[-1]
    else:
        own = [frame for frame in seen.stack if not frame.filename.startswith(OURS) and is_theirs(frame.filename)]
        last = (own or seen.stack)[-1:]
        where, error = f"{short(last[0].filename)}, line {last[0].lineno}" if last else name, lines[0]
    django = "; for a Django project, run `manage.py outlive_worker`" if "django.core.exceptions" in error else ""
    return f"{where}: {' '.join(error.split())[:MAX_REASON_CHARS]} (importing {name}){django}"


def short(file: str) -> str:
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file


def _drop_importlib(seen: traceback.TracebackException | None) -> None:
    """Leave out the frames of importlib and of this module: they say nothing about the user's code."""
    hidden = ("<frozen importlib", importlib.__file__, os.path.abspath(__file__))
    while seen is not None:
        shown = [one for one in seen.stack if not one.filename.startswith(hidden)]
        seen.stack = traceback.StackSummary.from_list(shown)
        seen = seen.__cause__ or seen.__context__
