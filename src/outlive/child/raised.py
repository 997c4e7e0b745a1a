"""What the job's code raises: the one place that catches it, and its text."""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from outlive.protocol import MAX_ERROR_CHARS, MAX_STACK_CHARS

T = TypeVar("T")
MAX_KIND_CHARS = 100
OURS = f"{Path(__file__).parents[1]}{os.sep}"


class Raised(NamedTuple):
    error: BaseException
    where: str = ""
    """What its text says at the end, if it was not the job's function that raised it."""

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
    """Run code of the job: its function, or a method of its results, exceptions or streams.

    Nothing else in a child catches what that raises, which may be anything, even SystemExit.
    """
    try:
        return code(*args)
    except BaseException as error:
        return Raised(error)


def _formatted(error: BaseException) -> list[str]:
    """Its traceback from the first frame of the job's code on: those of outlive that called it are always the same."""
    found = traceback.TracebackException.from_exception(error, compact=True)
    theirs = next((n for n, frame in enumerate(found.stack) if not frame.filename.startswith(OURS)), 0)
    del found.stack[:theirs]
    return list(found.format())


async def aguarded(code: Awaitable[T]) -> T | Raised:
    """The async twin of `guarded`."""
    try:
        return await code
    except BaseException as error:
        return Raised(error)


def storable(text: str, max_chars: int) -> str:
    """Text that Postgres can store. Of a long one the end is kept."""
    text = text[-4 * max_chars :]  # The text may be huge, and is copied next. More than needed: NULs are removed.
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= max_chars else "…" + text[1 - max_chars :]
