"""Finding an app by its name, `pkg.module:app`, and saying in one line why that failed."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from types import ModuleType

from outlive.errors import AppNotFound

MAX_REASON_CHARS = 500
MAX_TRACEBACK_CHARS = 16_000
_LIBRARIES = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def find_app(target: str) -> object:
    """`pkg.module:app`, from the current directory on. AppNotFound says what is wrong, and where."""
    name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    if not name or "/" in name or name.endswith(".py"):
        right = name.removesuffix(".py").strip("./").replace("/", ".") or "pkg.module"
        raise AppNotFound(f"{name!r} is not the name of a module: write it like {right}:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _imported(name)
    if not hasattr(module, attribute):
        apps = sorted(key for key, value in vars(module).items() if is_app(value))
        has = f"its apps are {', '.join(apps)}" if apps else "it has no outlive.App at all"
        raise AppNotFound(f"the module {name} has nothing named {attribute}: {has}")
    found: object = getattr(module, attribute)
    if not is_app(found):
        raise AppNotFound(f"{name}:{attribute} is of type {type(found).__name__}, not an outlive.App")
    return found


def is_app(value: object) -> bool:
    """Whether it can be worked with as an outlive.App; its class can't be imported here."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("tasks", "sources", "database_url"))


def _imported(name: str) -> ModuleType:
    pid = os.getpid()
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or os.getpid() != pid:  # A copy that the module has forked ends itself.
            raise
        seen = traceback.TracebackException.from_exception(error)
        _leave_out_importing(seen)
        if not seen.stack and isinstance(error, ModuleNotFoundError):
            raise AppNotFound(_nowhere(name, error.name or name)) from None
        raise AppNotFound(_reason(name, seen), "".join(seen.format())[-MAX_TRACEBACK_CHARS:]) from None


def _nowhere(name: str, missing: str) -> str:
    module = f"there is no module {missing}" + ("" if missing == name else f" (for {name})")
    return (
        f"{module}: tried {os.getcwd()} (the current directory) and {len(sys.path) - 1} more places of sys.path, "
        f"first {sys.path[0] or os.getcwd()}; run it where the module is, or set PYTHONPATH"
    )


def _reason(name: str, seen: traceback.TracebackException) -> str:
    """File and line in the user's own code, and the error."""
    words = list(seen.format_exception_only())
    if isinstance(seen.exc_type, type) and issubclass(seen.exc_type, SyntaxError):
        where, error = f"{_short(seen.filename or name)}, line {seen.lineno}", words[-1]
    else:
        own = [frame for frame in seen.stack if not frame.filename.startswith(("<", *_LIBRARIES))]
        last = (own or seen.stack)[-1:]
        where, error = f"{_short(last[0].filename)}, line {last[0].lineno}" if last else name, words[0]
    return f"{where}: {' '.join(error.split())[:MAX_REASON_CHARS]} (importing {name})"


def _short(file: str) -> str:
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file


def _leave_out_importing(seen: traceback.TracebackException | None) -> None:
    """The frames of importlib, and ours that called it, say nothing about the user's code."""
    while seen is not None:
        kept = [frame for frame in seen.stack if not _imports(frame.filename)]
        seen.stack = traceback.StackSummary.from_list(kept)
        seen = seen.__cause__ or seen.__context__


def _imports(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in (importlib.__file__, os.path.abspath(__file__))
