"""The heartbeat: this worker tells the database that it lives, whether it drains, and why it can't begin jobs.

It also tells how much memory the worker's processes have. The answer says whether an operator wants it to drain.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from uuid import UUID

from outlive import store
from outlive.worker import memory
from outlive.worker.loops import wait
from outlive.worker.reaper import Reaper
from outlive.worker.session import Session

FIRST_S = 5.0
"""When the second heartbeat comes at the latest: the first one knows nothing of the app's memory."""
MEASURE_SHARE = 200
"""Measuring the memory of all processes may take this part of the time: the kernel walks through all their pages."""


class Heartbeat:
    def __init__(
        self, worker: UUID, session: Session, reaper: Reaper, on_drain: Callable[[], None], *, every_s: float
    ) -> None:
        self._worker, self._session, self._reaper, self._every_s = worker, session, reaper, every_s
        self._on_drain = on_drain
        self._draining = False
        self._trouble: str | None = None
        self._news = asyncio.Event()
        self._memory_bytes: int | None = None
        self._measure_again = 0.0

    def drain(self) -> None:
        """The database hears of it at once: a SIGKILL may follow the SIGTERM."""
        self._draining = True
        self._news.set()

    def hurry(self) -> None:
        """The database has something to say."""
        self._news.set()

    def report_trouble(self, trouble: str | None) -> None:
        self._trouble = trouble
        self._news.set()

    async def run_once(self) -> None:
        self._news.clear()
        state = "draining" if self._draining else "active"
        answer = await self._session.run(store.heartbeat(self._worker, state, self._trouble, self._memory_bytes))
        if not answer:
            self._reaper.hear_own_death()
        elif answer == [True] and not self._draining:
            self._on_drain()
        await wait(self._news, self._every_s if self._measure_again else min(self._every_s, FIRST_S))
        if not self._news.is_set() and (asked := time.monotonic()) >= self._measure_again:
            self._memory_bytes = await asyncio.to_thread(memory.proportional_bytes_below, os.getpid())
            self._measure_again = time.monotonic() + MEASURE_SHARE * (time.monotonic() - asked)
