"""A limit of time for a piece of a job's code: SIGALRM raises an exception in its thread, or asyncio in its task."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

from outlive.child import stops
from outlive.errors import OutliveError

AGAIN_S = 0.01  # When an alarm comes again that has come in outlive's own code, which it must not interrupt.
_limit_s = 0.0  # The limit that counts now; 0 if none does.


@contextmanager
def time_limit(seconds: float | None, what: str, error: type[Exception] = TimeoutError) -> Iterator[None]:
    """Raise this error in a block of Python that takes longer. Native code that does not return is ended by the timeout
    of its task. An alarm that comes sooner, such as that of a step that calls this one, stays in place."""
    if seconds is not None:
        import threading  # Not at the top: it halves the rate of forks.

        if threading.current_thread() is not threading.main_thread():
            raise OutliveError(f"{what} has a time limit, so it can be called in a job's main thread only")
    if seconds is None or 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        yield
        return
    global _limit_s
    outer_s, _limit_s = _limit_s, seconds
    depth, began = stops.holds, time.monotonic()

    def expired(number: int, frame: FrameType | None) -> None:
        if stops.holds > depth:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            raise error(f"{what} took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        _limit_s = outer_s
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - began), AGAIN_S), every_s)


@asynccontextmanager
async def atime_limit(seconds: float | None, what: str) -> AsyncIterator[None]:
    """The async twin of `time_limit`, for a block that awaits."""
    import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"{what} took longer than {seconds:g} s") from error
        raise


@contextmanager
def no_limit() -> Iterator[None]:
    """No limit counts in this block, in which the job waits. After it, its time begins again, as it would elsewhere."""
    if _limit_s:
        signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if _limit_s:
            signal.setitimer(signal.ITIMER_REAL, _limit_s)
