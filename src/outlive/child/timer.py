"""A limit of time for a piece of a job's code, in its own thread: SIGALRM raises TimeoutError there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from outlive.errors import OutliveError


@contextmanager
def time_limit(seconds: float | None, name: str) -> Iterator[None]:
    """Python code is interrupted. Native code that does not return is ended by the timeout of its task."""
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise OutliveError(f"the step {name} has a timeout, so it can be called in a job's main thread only")

    def expired(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the step {name} took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
