"""The outbox: how attempts ended, until the database knows it.

Most ends wait here for the claim loop, which writes them with its next claim. Ends that could delay the others (they
carry records or spawned jobs, or another transaction has locked their rows) go through `SlowEnds`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from uuid import UUID

from outlive import store
from outlive.model import Ended
from outlive.worker.leases import Leases
from outlive.worker.session import Session
from outlive.worker.slow_ends import SlowEnds
from outlive.worker.wakeup import Wakeup

CAREFUL_S = 5.0
"""How long after a lock timeout the worker looks for locked rows before it writes ends."""

_log = logging.getLogger("outlive.worker")


class Outbox:
    def __init__(self, worker: UUID, session: Session, leases: Leases, wake: Wakeup) -> None:
        self._worker, self._session, self.leases, self._wake = worker, session, leases, wake
        self.waiting: list[Ended] = []
        self.slow = SlowEnds(worker, session.url, leases, self.put)
        self._careful_until = 0.0

    def put(self, end: Ended) -> None:
        if self.leases.disowned(end.token):
            self.leases.fenced += 1
            self.leases.drop(end.token)
        elif end.records is not None or end.spawns is not None:
            self.slow.add(end)
        else:
            self.waiting.append(end)
        self._wake.set()

    @property
    def unwritten(self) -> list[Ended]:
        """Every end that is not known to be in the database."""
        return [*self.waiting, *self.slow.pending.values()]

    async def take(self) -> list[Ended]:
        """The ends for the next statement. The caller hands them to `written` or `put_back`."""
        if self.waiting and time.monotonic() < self._careful_until:
            await self._set_locked_aside()
        taken, self.waiting = self.waiting, []
        return taken

    def put_back(self, ends: list[Ended]) -> None:
        self.waiting = ends + self.waiting

    def written(self, ends: list[Ended], stale: Collection[int]) -> None:
        for end in ends:
            self.leases.drop(end.token)
            if end.token in stale:
                self.leases.note_refused_end(end)

    def keep(self, tokens: Collection[int]) -> None:
        """Drop the ends of attempts that the database no longer has under this worker."""
        self.waiting = [end for end in self.waiting if end.token in tokens]
        self.slow.keep(tokens)

    def start_being_careful(self) -> bool:
        """A statement timed out on a lock: look for locked rows from now on. False if that was so already."""
        was_careful = time.monotonic() < self._careful_until
        self._careful_until = time.monotonic() + CAREFUL_S
        return not was_careful

    async def _set_locked_aside(self) -> None:
        tokens = [end.token for end in self.waiting]
        if locked := await self._session.run(store.locked_ends(self._worker, tokens)):
            _log.warning("%d ends wait for a lock that another transaction holds", len(locked))
            for end in [end for end in self.waiting if end.token in locked]:
                self.waiting.remove(end)
                self.slow.add_locked(end)

    def write_one_by_one(self, ends: list[Ended]) -> None:
        """Postgres refuses one of these ends: each is written by itself, and fails if it is the one."""
        for end in ends:
            self.slow.add(end)
