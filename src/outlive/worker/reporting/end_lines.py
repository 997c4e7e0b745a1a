"""The log lines of ends.

The successes that are read together are handed over together: to queue a line by itself costs as much as to make it.
The line of another end says when the next attempt may begin, or that the job has failed for good, which the database
decides. So it waits until the end is written, for at most a second. Each line has the time at which it is logged, so
that all lines are in order.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import psycopg

from outlive import db, store
from outlive.model import Claimed, Ended
from outlive.states import FAULTS, Outcome
from outlive.worker.reporting import job_log
from outlive.worker.session import Session

WRITTEN_S = 0.03
"""How long it usually takes until an end is written."""
AT_MOST_S = 1.0


class EndLines:
    def __init__(self, worker: UUID, session: Session) -> None:
        self._worker, self._session = worker, session
        self._waiting: dict[int, tuple[Claimed, Ended]] = {}
        """Attempts whose line is not written yet, by token."""
        self._any = asyncio.Event()
        self._successes: list[job_log.Success] = []

    def add(self, job: Claimed, end: Ended) -> None:
        if end.outcome is Outcome.SUCCEEDED:
            if job_log.shows_info():
                if not self._successes:
                    asyncio.get_running_loop().call_soon(self._write_successes)
                self._successes.append((job.id, job.task, job.attempt, end.took_s, job.options))
            return
        if end.outcome not in FAULTS:  # Released or cancelled.
            job_log.not_succeeded(job, end, worker=self._worker, state=None, next_try=None)
            return
        self._waiting[end.token] = (job, end)
        self._any.set()
        asyncio.get_running_loop().call_later(AT_MOST_S, self._write, end.token)

    async def run_once(self) -> None:
        await self._any.wait()
        self._any.clear()
        await asyncio.sleep(WRITTEN_S)
        try:
            await self.ask(self._session)
        except psycopg.Error as error:
            if not db.lost(error):
                raise
            return  # The lines are written after a second, without it.
        if self._waiting:
            self._any.set()

    async def ask(self, session: Session) -> None:
        """Write the lines of those ends that are written by now."""
        if self._waiting:
            for token, (state, next_try) in (await session.run(store.next_tries(self._waiting))).items():
                self._write(token, state, next_try)

    def _write(self, token: int, state: str | None = None, next_try: datetime | None = None) -> None:
        if (waiting := self._waiting.pop(token, None)) is not None:
            job_log.not_succeeded(*waiting, worker=self._worker, state=state, next_try=next_try)

    def _write_successes(self) -> None:
        if self._successes:
            successes, self._successes = self._successes, []
            job_log.succeeded(successes, worker=self._worker)

    def flush(self) -> None:
        """Write all lines that wait."""
        self._write_successes()
        for token in list(self._waiting):
            self._write(token)
