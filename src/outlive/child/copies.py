"""Copies of a job's process, which the job's code forks with `os.fork` or `multiprocessing`.

A copy has the job's whole stack, so it would return into the child's loop and report the job's end. It exits where the
job's code ends instead: only the job's own process reports.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Coroutine
from os import _exit, getpid
from typing import Any, NoReturn, TypeVar

from outlive.errors import Stopped

T = TypeVar("T")


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
