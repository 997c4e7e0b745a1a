"""The claim of most jobs, in the statement that writes the ends that wait.

If Postgres refuses that statement because of an end, its ends are written in another way: one bad or locked end stops
neither the others nor the claims.
"""

from __future__ import annotations

import logging
import time
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Claimed, Ended
from outlive.worker.claiming.lanes import Lanes
from outlive.worker.claiming.offers import Offer
from outlive.worker.ending.outbox import Outbox, never_accepted
from outlive.worker.session import Session

CAREFUL_S = 5.0
"""How long after a lock timeout the worker looks for locked rows before it writes ends."""

_log = logging.getLogger("outlive.worker")


class EndAndClaim:
    def __init__(self, worker: UUID, session: Session, outbox: Outbox, lanes: Lanes) -> None:
        self._worker, self._session, self._outbox, self._lanes = worker, session, outbox, lanes
        self._careful_until = 0.0

    async def claim(self, offer: Offer) -> list[Claimed]:
        """Write the ends that wait, and claim what is offered."""
        tokens = [end.token for end in self._outbox.waiting] if time.monotonic() < self._careful_until else []
        if tokens and (locked := await self._session.run(store.locked_ends(self._worker, tokens))):
            _log.warning("%d results wait for a lock that another transaction holds", len(locked))
            self._outbox.set_aside(locked)
        ends, leases = self._outbox.take(), self._outbox.leases
        lanes, limit, begun = offer
        try:
            turn = await self._session.run(
                store.end_and_claim(self._worker, ends, lanes, limit=limit, lease_s=leases.lease_s, begun=begun)
            )
        except BaseException as error:
            if not ends or not self._refused(ends, error):
                self._outbox.put_back(ends)  # If they were written, reconciliation drops them.
                raise
            return []
        for end in ends:
            leases.drop(end.token)
            if end.token in turn.refused:
                leases.note_refused_end(end)
        self._lanes.wait(turn.waits_s, time.monotonic())
        self._lanes.claimed(lanes, turn.claimed, limit)
        return turn.claimed

    def _refused(self, ends: list[Ended], error: BaseException) -> bool:
        """Write these ends in another way, if Postgres has answered that it did not write them because of one."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            careful, self._careful_until = time.monotonic() < self._careful_until, time.monotonic() + CAREFUL_S
            if not careful:  # The row of one of them is locked: the next turn sets those aside.
                self._outbox.put_back(ends)
                return True
            # What follows from one of them is locked.
        elif getattr(error, "sqlstate", "") is not None and never_accepted(error):
            _log.warning("Postgres refused a batch of %d results; writing them one by one: %s", len(ends), error)
        else:
            return False
        for end in ends:
            self._outbox.slow.add(end)
        return True
