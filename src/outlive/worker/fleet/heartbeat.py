"""The heartbeat: it shows that this worker is alive, whether it drains, why it can't begin jobs, and its memory.

The answer says whether an operator wants the worker to drain.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from uuid import UUID

from outlive import store
from outlive.worker.limits import memory
from outlive.worker.loops import wait
from outlive.worker.session import Session

FIRST_S = 5.0
"""When the second heartbeat comes at the latest: at the first one, the memory of the app is not measured yet."""
MEASURE_SHARE = 200
"""Measuring the memory of all processes may take this part of the time: the kernel walks through all their pages."""
Then = Callable[[], None]


class Heartbeat:
    def __init__(
        self, worker: UUID, session: Session, every_s: float, *, on_declared_dead: Then, on_drain: Then
    ) -> None:
        self._worker, self._session, self._every_s = worker, session, every_s
        self._on_declared_dead, self._on_drain = on_declared_dead, on_drain
        self._draining = False
        self._trouble: str | None = None
        self._due = asyncio.Event()
        self._memory_bytes: int | None = None
        self._measure_again = 0.0

    def hurry(self) -> None:
        """Send the next heartbeat at once."""
        self._due.set()

    def drain(self) -> None:
        """At once: a SIGKILL may follow the SIGTERM."""
        self._draining = True
        self._due.set()

    def report_trouble(self, trouble: str | None) -> None:
        self._trouble = trouble
        self._due.set()

    async def run_once(self) -> None:
        self._due.clear()
        state = "draining" if self._draining else "active"
        answer = await self._session.run(store.heartbeat(self._worker, state, self._trouble, self._memory_bytes))
        if not answer:
            self._on_declared_dead()
        elif answer == [True] and not self._draining:
            self._on_drain()
        await wait(self._due, self._every_s if self._measure_again else min(self._every_s, FIRST_S))
        if not self._due.is_set() and (asked := time.monotonic()) >= self._measure_again:
            self._memory_bytes = await asyncio.to_thread(memory.proportional_bytes_below, os.getpid())
            self._measure_again = time.monotonic() + MEASURE_SHARE * (time.monotonic() - asked)
