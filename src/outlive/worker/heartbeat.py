"""The heartbeat: this worker tells the database that it lives, whether it drains, and why it can't begin jobs.

The answer says whether an operator wants it to drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from outlive import store
from outlive.worker.loops import wait
from outlive.worker.reaper import Reaper
from outlive.worker.session import Session


class Heartbeat:
    def __init__(
        self, worker: UUID, session: Session, reaper: Reaper, on_drain: Callable[[], None], *, every_s: float
    ) -> None:
        self._worker, self._session, self._reaper, self._every_s = worker, session, reaper, every_s
        self._on_drain = on_drain
        self._draining = False
        self._trouble: str | None = None
        self._news = asyncio.Event()

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
        answer = await self._session.run(store.heartbeat(self._worker, state, self._trouble))
        if not answer:
            self._reaper.hear_own_death()
        elif answer == [True] and not self._draining:
            self._on_drain()
        await wait(self._news, self._every_s)
