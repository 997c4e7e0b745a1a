"""SIGTERM and SIGINT raise `Stopped` in the job's code, so that `finally` runs, but never in outlive's own code."""

from __future__ import annotations

from types import FrameType

from outlive.errors import Stopped

holds = 1  # How many blocks of outlive's own code are under way. `Stopped` is raised only at 0.
last_signal = 0  # The signal that has come since the last job began; 0 if none has.
_pending = False
_begun = False  # The next job has begun: a signal that comes before its code runs is for it.


def on_stop(number: int, frame: FrameType | None) -> None:
    global _pending, last_signal
    last_signal = number
    if holds:
        _pending = True
    else:
        raise Stopped("the job was told to stop")


def job_has_begun() -> None:
    """The next job began before this interpreter did."""
    global _begun
    _begun = True


class _Held:
    """`Stopped` is not raised in this block. If a signal comes, it is raised at the end."""

    def __enter__(self) -> None:
        global holds
        holds += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        global holds, _pending
        holds -= 1
        if error is None and _pending and not holds:
            _pending = False
            raise Stopped("the job was told to stop")


class _LetThrough:
    """`Stopped` may be raised in this block, in which the job's code runs."""

    def __enter__(self) -> None:
        global holds, _pending, last_signal, _begun
        if not _begun:
            _pending, last_signal = False, 0  # It was for an earlier job, or for none.
        _begun = False
        if _pending:
            _pending = False
            raise Stopped("the job was told to stop before its code began")
        holds -= 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        global holds
        holds += 1


# These are classes because contextlib.contextmanager costs more, and every job uses them.
held, let_through = _Held(), _LetThrough()
