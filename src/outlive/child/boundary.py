"""The boundary around the job's code: the one place that catches what it raises, and where its copies end.

A copy of its process, which it forks with `os.fork` or `multiprocessing`, has the job's whole stack, so it would return
into the child's loop and report the job's end. It exits where the job's code ends instead.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from os import _exit, getpid
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

from outlive.child import stops
from outlive.errors import Stopped
from outlive.protocol import MAX_ERROR_CHARS, MAX_STACK_CHARS

T = TypeVar("T")
MAX_KIND_CHARS = 100
OURS = f"{Path(__file__).parents[1]}{os.sep}"


class Raised(NamedTuple):
    error: BaseException
    where: str = ""  # What its text says at the end, if it was not the job's function that raised it.

    def summary(self, note: str = "") -> str:
        """The type and the message of the exception, even if it can't be printed."""
        kind = storable(type(self.error).__name__, MAX_KIND_CHARS)
        message = guarded(str, self.error)
        if isinstance(message, Raised):
            message = "(it can't be printed)"
        text = storable(message + self.where + note, MAX_ERROR_CHARS - len(kind) - 2)
        return f"{kind}: {text}" if text else kind

    def stack(self) -> str | None:
        """Its traceback. If the exception can't be formatted, only the frames; None if these can't either."""
        lines = guarded(_formatted, self.error)
        if isinstance(lines, Raised):
            lines = guarded(lambda: traceback.format_tb(self.error.__traceback__))
        return None if isinstance(lines, Raised) else storable("".join(lines), MAX_STACK_CHARS)

    def stack_if_caused(self) -> str | None:
        """The traceback of a decision of the job's code, if another exception led to it: that one is the evidence."""
        error = self.error
        context = None if error.__suppress_context__ else error.__context__
        return self.stack() if error.__cause__ or context else None


def guarded(code: Callable[..., T], *args: object) -> T | Raised:
    """Run code of the job, as its function or a method of its results. Only this catches what that raises: anything."""
    try:
        return code(*args)
    except BaseException as error:
        return Raised(error)


async def aguarded(code: Awaitable[T]) -> T | Raised:
    """The async twin of `guarded`."""
    try:
        return await code
    except BaseException as error:
        return Raised(error)


def _formatted(error: BaseException) -> list[str]:
    return traceback.format_exception(type(error), error, theirs(error))


def theirs(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of the job's code on: those of outlive that called it are always the same."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OURS):
        found = found.tb_next
    return found or error.__traceback__


def storable(text: str, max_chars: int) -> str:
    """Text that Postgres can store. Of a long one the end is kept."""
    text = text[-4 * max_chars :]  # The text may be huge, and is copied next. More than needed: NULs are removed.
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= max_chars else "…" + text[1 - max_chars :]


class CopiesExit:
    """A block of code that may fork. A process other than `pid` exits when it leaves the block."""

    __slots__ = ("_pid",)

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if getpid() != self._pid:
            _exit_copy(error)


async def awaited(job: Coroutine[Any, Any, T], pid: int) -> T:
    """The same block around a coroutine: a copy that closes the event loop would close its parent's too."""
    with CopiesExit(pid):
        return await job


def _exit_copy(error: BaseException | None) -> NoReturn:
    """Exit as a Python program does, but without the exit functions of the job's own process."""
    code = 1
    try:
        match error:
            case None | SystemExit(code=None):
                code = 0
            case SystemExit(code=int(number)):
                code = number & 0xFF
            case SystemExit(code=text):
                print(text, file=sys.stderr)
            case Stopped():
                pass  # The worker stops the job, and its copies with it.
            case _:
                traceback.print_exception(error)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        _exit(code)


class ProcessStart:
    """What an app runs once in each child, before its first job: the functions under `@app.on_process_start`."""

    __slots__ = ("due", "lifespans")

    def __init__(self, hooks: Iterable[FunctionType], lifespans: Iterable[FunctionType] = ()) -> None:
        self.due = list(hooks)  # What is still to run in this process.
        self.lifespans = list(lifespans)  # What surrounds the jobs that share it.

    def run(self, pid: int) -> Raised | None:
        """Run what is due. What it raises ends the job that has begun, and the next one tries again."""
        while self.due:
            hook = self.due[0]
            if isinstance(ran := guarded(_call, hook, pid), Raised):
                return Raised(ran.error, f" (in {hook.__qualname__}, before the first job of its process)")
            del self.due[0]
        stops.job_has_begun()  # A signal that stops it may come here, or between here and its code.
        return None


def _call(hook: FunctionType, pid: int) -> None:
    with CopiesExit(pid), stops.let_through:
        hook()
