"""A client that keeps enqueuing jobs while the database suffers, and remembers which were acknowledged."""

import threading
from types import TracebackType
from typing import Any, Self

import outlive
from tests import faults


class Load:
    """Jobs enqueued in a thread of its own, a few at a time, as long as the block lasts."""

    def __init__(self, *, most: int = 3000, bytes_each: int = 0) -> None:
        self.acknowledged: list[outlive.Job[Any]] = []
        self.refused: list[Exception] = []
        self._most, self._bytes_each = most, bytes_each
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set() and len(self.acknowledged) < self._most:
            n = len(self.acknowledged)
            try:
                if self._bytes_each:
                    self.acknowledged.append(faults.length_of.enqueue("x" * self._bytes_each))
                else:
                    self.acknowledged += faults.app.enqueue_many(faults.work_a_little.job(n + i) for i in range(5))
            except outlive.OutliveError as refused:  # Anything else would be ours to explain, and fails the test.
                self.refused.append(refused)
            self._stop.wait(0.01)
