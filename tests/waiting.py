"""Waiting until something is true: the only way in which a test waits."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.02


def eventually(predicate: Callable[[], T], *, within_s: float = 10.0, what: str = "") -> T:
    """Wait until `predicate` gives a true answer, and return it. Raises AssertionError if it does not in time."""
    for answer in _answers(predicate, within_s, what):
        if answer:
            return answer
        time.sleep(PAUSE_S)
    raise AssertionError


async def aeventually(predicate: Callable[[], T], *, within_s: float = 20.0, what: str = "") -> T:
    """Do the same in an event loop."""
    for answer in _answers(predicate, within_s, what):
        if answer:
            return answer
        await asyncio.sleep(PAUSE_S)
    raise AssertionError


def _answers(predicate: Callable[[], T], within_s: float, what: str) -> Iterator[T]:
    """Ask until the answer is true or the time is over."""
    deadline = time.monotonic() + within_s
    while True:
        # The clock is read before the question: a machine that stalls in between must not cost the last chance.
        late = time.monotonic() > deadline
        yield (answer := predicate())
        assert answer or not late, f"not within {within_s} s: {what or predicate}"
