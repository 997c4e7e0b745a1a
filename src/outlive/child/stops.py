"""SIGTERM and SIGINT in a child raise `Stopped` in the job, so that `finally` runs, but never amid our own work."""

from __future__ import annotations

from types import FrameType

from outlive.errors import Stopped

_holds = 1  # Held until a job's code runs.
_pending = False
_came = 0


def on_stop(number: int, frame: FrameType | None) -> None:
    global _pending, _came
    _came = number
    if _holds:
        _pending = True
    else:
        raise Stopped("the worker has told this job to stop")


def came() -> int:
    """The signal that has come since the last job began; 0 if none has."""
    return _came


class _Held:
    """Nothing is raised in here; what came meanwhile is raised at the end."""

    def __enter__(self) -> None:
        global _holds
        _holds += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        global _holds
        _holds -= 1
        if error is None:
            _raise_pending()


class _LetThrough:
    """The job's code runs in here, and may be stopped."""

    def __enter__(self) -> None:
        global _holds, _pending, _came
        _pending, _came = False, 0
        _holds -= 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        global _holds
        _holds += 1


# Every job goes through these, so they are no generators, which cost more.
held, let_through = _Held(), _LetThrough()


def _raise_pending() -> None:
    global _pending
    if _pending and not _holds:
        _pending = False
        raise Stopped("the worker has told this job to stop")
