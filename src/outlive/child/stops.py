"""SIGTERM in a child: it raises `Stopped` in the job, so that `finally` runs, but never in the middle of our work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from outlive.errors import Stopped

_holds = 1  # Held until a job's code runs.
_pending = False
_came = False


def on_sigterm(number: int, frame: FrameType | None) -> None:
    global _pending, _came
    _came = True
    if _holds:
        _pending = True
    else:
        raise Stopped("the worker has told this job to stop")


def came() -> bool:
    """Whether SIGTERM has come since the last job began."""
    return _came


@contextmanager
def held() -> Iterator[None]:
    """Nothing is raised in here; what came meanwhile is raised at the end."""
    global _holds
    _holds += 1
    try:
        yield
    finally:
        _holds -= 1
    _raise_pending()


@contextmanager
def let_through() -> Iterator[None]:
    """The job's code runs in here, and may be stopped."""
    global _holds, _pending, _came
    _pending = _came = False
    _holds -= 1
    try:
        yield
    finally:
        _holds += 1


def _raise_pending() -> None:
    global _pending
    if _pending and not _holds:
        _pending = False
        raise Stopped("the worker has told this job to stop")
