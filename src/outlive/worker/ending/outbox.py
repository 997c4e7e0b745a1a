"""The outbox: how attempts ended, until the database has it.

Most ends wait here for the claim loop, which writes them in the statement of its next claim. Ends that could delay the
others (they carry records or spawned jobs, or another transaction has locked their rows) go through `SlowEnds`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Claimed, Ended
from outlive.worker.attempts.leases import Leases
from outlive.worker.claiming.offers import Offer
from outlive.worker.wakeup import Wakeup
from outlive.worker.ending.slow_ends import SlowEnds, never_accepted
from outlive.worker.session import Session

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

    def keep(self, tokens: Collection[int]) -> None:
        """Drop the ends of attempts that the database no longer has under this worker."""
        self.waiting = [end for end in self.waiting if end.token in tokens]
        self.slow.keep(tokens)

    async def claim(self, offer: Offer) -> list[Claimed]:
        """Write the ends that wait, and claim what is offered, in one statement."""
        if self.waiting and time.monotonic() < self._careful_until:
            await self._set_locked_aside()
        ends, self.waiting = self.waiting, []
        try:
            turn = await self._session.run(
                store.end_and_claim(
                    self._worker,
                    ends,
                    offer.lanes,
                    limit=offer.limit,
                    lease_s=self.leases.lease_s,
                    begun=offer.begun,
                )
            )
        except BaseException as error:
            if not ends or not self._refused(ends, error):
                self.waiting = ends + self.waiting  # If they were written, reconciliation drops them.
                raise
            return []
        for end in ends:
            self.leases.drop(end.token)
            if end.token in turn.refused:
                self.leases.note_refused_end(end)
        return turn.claimed

    def _refused(self, ends: list[Ended], error: BaseException) -> bool:
        """Write these ends in another way, if Postgres has answered that it did not write them because of one."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            careful, self._careful_until = time.monotonic() < self._careful_until, time.monotonic() + CAREFUL_S
            if not careful:  # The row of one of them is locked: the next turn sets those aside.
                self.waiting = ends + self.waiting
                return True
            # What follows from one of them is locked.
        elif getattr(error, "sqlstate", "") is not None and never_accepted(error):
            _log.warning("Postgres refused a batch of %d results; writing them one by one: %s", len(ends), error)
        else:
            return False
        for end in ends:
            self.slow.add(end)
        return True

    async def _set_locked_aside(self) -> None:
        tokens = [end.token for end in self.waiting]
        if locked := await self._session.run(store.locked_ends(self._worker, tokens)):
            _log.warning("%d results wait for a lock that another transaction holds", len(locked))
            for end in [end for end in self.waiting if end.token in locked]:
                self.waiting.remove(end)
                self.slow.add_locked(end)
