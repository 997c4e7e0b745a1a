"""A thread that sends things elsewhere, some at a time. A receiver that is slow or gone delays nothing here."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
MOST, MOST_BYTES = 10_000, 16 * 1024 * 1024
"""How many things may wait, and how large they may be together."""
PORTION, PORTION_BYTES = 2_000, 256 * 1024
"""The same for those that are sent at once: a library may need a hundred times their size for that."""
PAUSE_S = 0.2
"""How long the first of a portion waits for others."""
WARN_AGAIN_S = 60.0

_log = logging.getLogger("outlive.worker")


class Background(Generic[T]):
    def __init__(self, what: str, send: Callable[[list[T]], object], size: Callable[[T], int] = lambda _: 0) -> None:
        self._what, self._send, self._size = what, send, size
        self._waiting: deque[T] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = self._idle = False
        self._dropped = 0
        self._warned_at = -WARN_AGAIN_S
        self._thread = threading.Thread(target=self._run, name=f"outlive-{what}", daemon=True)
        self._thread.start()

    def put(self, things: Sequence[T], share: float = 1.0) -> None:
        """Never waits for the receiver. Beyond this share of the limits, things are dropped."""
        more_bytes = sum(map(self._size, things))
        with self._changed:
            count, size = len(self._waiting) + len(things), self._waiting_bytes + more_bytes
            if count > MOST * share or size > MOST_BYTES * share:
                self._dropped += len(things)
                return
            self._waiting.extend(things)
            self._waiting_bytes = size
            if self._idle:
                self._changed.notify()

    def close(self, within_s: float) -> None:
        """Send what waits, if that takes no longer than this."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(within_s)

    def _run(self) -> None:
        while things := self._next():
            try:
                self._send(things)
            except Exception as error:  # A library raised it, perhaps because of a job's data.
                self._warn(f"{len(things)} {self._what} could not be sent: {type(error).__name__}: {error}")

    def _next(self) -> list[T]:
        """Wait for the next portion; empty when all is sent and there will be no more."""
        with self._changed:
            self._idle = True
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._idle = False
            self._changed.wait_for(lambda: self._closing, PAUSE_S)
            things = self._portion()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._warn(f"{dropped} {self._what} were dropped, because they come faster than they are sent")
        return things

    def _portion(self) -> list[T]:
        things: list[T] = []
        size = 0
        while self._waiting and len(things) < PORTION:
            size += self._size(self._waiting[0])
            if things and size > PORTION_BYTES:
                break
            things.append(self._waiting.popleft())
        self._waiting_bytes -= sum(map(self._size, things))
        return things

    def _warn(self, words: str) -> None:
        if (now := time.monotonic()) - self._warned_at >= WARN_AGAIN_S:
            self._warned_at = now
            _log.warning("%s", words)
