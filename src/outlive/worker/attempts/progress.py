"""Progress of running jobs, written a few times a second.

An attempt ends only after its steps and its last progress are written, because the next attempt begins from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from uuid import UUID

import psycopg

from outlive import db, store
from outlive.model import Ended
from outlive.protocol import Progress
from outlive.worker.attempts.steps import StepWriter
from outlive.worker.ending.outbox import Outbox
from outlive.worker.loops import wait
from outlive.worker.session import Runner

EVERY_S = 0.2
LAST_S = 1.0
"""How long a worker that stops tries once more what locks hold up."""
MAX_WARNED = 1000
_UNWRITABLE = ("22", "54")
"""Classes of errors about values that Postgres does not accept, or that exceed its limits."""

_log = logging.getLogger("outlive.worker")


class ProgressWriter:
    def __init__(self, worker: UUID, session: Runner, outbox: Outbox, steps: StepWriter) -> None:
        self._worker, self._session, self._outbox, self._steps = worker, session, outbox, steps
        self._unwritten: dict[int, Progress] = {}
        """The latest progress of each attempt, by token."""
        self.held_ends: list[Ended] = []
        """Ends of attempts whose progress is not written yet."""
        self._warned: deque[int] = deque(maxlen=MAX_WARNED)
        """Attempts whose progress could not be written."""
        self._hurry, self._writing = asyncio.Event(), asyncio.Lock()

    def note(self, progress: Progress) -> None:
        """Keep only the latest of each attempt: a job that reports all the time does not fill the memory."""
        before = self._unwritten.get(progress.token)
        self._unwritten[progress.token] = progress if before is None else progress.after(before)

    def hold(self, end: Ended) -> bool:
        """Keep an end until the progress and the steps before it are written; False if none waits."""
        if not self.waiting(end.token):
            return False
        self.held_ends.append(end)
        self._hurry.set()
        return True

    @property
    def held_up(self) -> bool:
        """Whether a lock holds up an end."""
        return any(self._steps.locked(end.token) for end in self.held_ends)

    def waiting(self, token: int) -> bool:
        """Whether progress or a step of this attempt is not written yet."""
        return token in self._unwritten or self._steps.waiting(token)

    async def run_once(self) -> None:
        await wait(self._hurry, EVERY_S)
        self._hurry.clear()
        await self.write()

    async def write(self) -> None:
        """Write all progress, then release the ends that waited for it. More of both may arrive meanwhile."""
        async with self._writing:
            writing, ends = dict(self._unwritten), list(self.held_ends)
            await self._steps.write()
            if writing:
                await self._write(list(writing.values()))
            self._unwritten = {token: one for token, one in self._unwritten.items() if one is not writing.get(token)}
            del self.held_ends[: len(ends)]
            for end in ends:
                if self._steps.waiting(end.token):  # A lock holds one up.
                    self.held_ends.append(end)
                else:
                    self._outbox.put(end)

    async def write_last(self) -> None:
        """Write all, and release all ends but those that a lock holds up even now."""
        await self._steps.write_locked(within_s=LAST_S)
        await self.write()

    async def write_that_of(self, token: int) -> None:
        """Write the progress and the steps of an attempt. LockNotAvailable: a lock holds one of these up."""
        await self.write()
        await self._steps.write_those_of(token)

    async def _write(self, reports: Sequence[Progress]) -> None:
        """Write them with one statement, or one by one if Postgres refuses one of them."""
        try:
            await self._session.run(store.write_progress(self._worker, reports))
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _UNWRITABLE:
                raise
            if len(reports) > 1:
                for one in reports:
                    await self._write([one])
            elif (token := reports[0].token) not in self._warned:  # The job may repeat it many times a second.
                self._warned.append(token)
                _log.error("progress of attempt %d can't be written and is dropped: %s", token, db.summary(error))
