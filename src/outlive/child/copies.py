"""Copies of a job's process: what the job's code forks itself, as `os.fork` and `multiprocessing` do.

A copy has the job's whole stack, so it would come back into our loop and answer for the job. It ends where the job's
code ends instead: the answer of the job's own process counts, and nothing that a copy does.
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


class LeftHere:
    """Run code that may fork: a process other than `pid` ends as it leaves this block."""

    __slots__ = ("_pid",)

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if getpid() != self._pid:
            _leave(error)


async def awaited(job: Coroutine[Any, Any, T], pid: int) -> T:
    """The same for a coroutine: a copy that closed the event loop would close its parent's too."""
    with LeftHere(pid):
        return await job


def _leave(error: BaseException | None) -> NoReturn:
    """End as a Python program does, but without what was registered for the end of the job's own process."""
    code = 1
    try:
        match error:
            case None:
                code = 0
            case SystemExit(code=None):
                code = 0
            case SystemExit(code=int(number)):
                code = number & 0xFF
            case SystemExit(code=words):
                print(words, file=sys.stderr)
            case Stopped():
                pass  # The job was told to stop, and its copies with it.
            case _:
                traceback.print_exception(error)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        _exit(code)
