"""Waiting for something to become true, the only way in which a test waits."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], *, within_s: float = 10.0, what: str = "") -> T:
    """The first true answer of `predicate`; an AssertionError when none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        # The clock is read before the question: a machine that stalls in between must not cost the last chance.
        late = time.monotonic() > deadline
        if answer := predicate():
            return answer
        assert not late, f"not within {within_s} s: {what or predicate}"
        time.sleep(0.01)


async def aeventually(predicate: Callable[[], T], *, within_s: float = 20.0, what: str = "") -> T:
    """The same, while an event loop goes on."""
    deadline = time.monotonic() + within_s
    while True:
        late = time.monotonic() > deadline
        if answer := predicate():
            return answer
        assert not late, f"not within {within_s} s: {what or predicate}"
        await asyncio.sleep(0.01)
