"""Lease renewal: keep the attempts that children work on, and kill those that belong to another worker now.

No job is charged for a lease that its living worker could not renew. If a reaper has ended such an attempt as lost,
`TakingBack` takes the loss back, unless a job has stopped this process: nothing else can be charged to that job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import UUID

from outlive import store
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.ending.outbox import Outbox
from outlive.worker.processes.assignments import GIVEN_UP
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

LOOK_S = 0.5
MARK_S = 0.1

_log = logging.getLogger("outlive.worker")


class Renewal:
    def __init__(
        self, worker: UUID, session: Session, *, slots: Slots, outbox: Outbox, progress: ProgressWriter
    ) -> None:
        self._worker, self._session, self._slots, self._leases = worker, session, slots, slots.leases
        self._outbox, self._progress = outbox, progress

    async def run_once(self) -> None:
        busy = [child for child in self._slots.busy if not child.exited]
        given = {token: (child, one) for child in busy for token, one in child.given.items()}
        unplaced = [one.job.token for one in self._slots.unplaced]
        ended = [end.token for end in (*self._outbox.unwritten, *self._progress.held_ends)]
        ended += [one.end.token for one in self._slots.deferred.waiting]
        started = time.monotonic()
        tokens, leases = [*given, *unplaced, *ended], self._leases
        renewed = await self._session.run(store.renew(self._worker, tokens, lease_s=leases.lease_s)) if tokens else {}
        leases.renew(renewed, since=started)
        missing = [token for token in given if token not in renewed and token in leases.tokens]
        lost = await self._session.run(store.ended(missing)) if missing else {}
        for token in missing:
            child, one = given[token]
            if token not in child.given:
                continue  # This worker has ended it meanwhile.
            if token in lost and not one.completing:
                # If it waits behind another job, the watch ends it when its turn comes: the other is not to blame.
                _log.error("attempt %d was given up by another worker: its process is killed", token)
                leases.lose(token)
                one.decide(GIVEN_UP)
            elif token not in lost and one.completing:
                # The job's own transaction has locked the row. Until it ends, no other worker can take the attempt.
                leases.trust_until(token, started + 2 * leases.renew_s)
        await asyncio.sleep(leases.renew_s)  # At the end, so that a renewal that failed is repeated at once.

    async def mark_begun_once(self) -> None:
        """Mark which of the jobs that were claimed ahead have begun: only those are charged for a worker's death."""
        await asyncio.sleep(MARK_S)
        unmarked = [(child, one) for child, one in self._slots.running if not one.marked]
        if begun := [one for child, one in unmarked if child.shared or child.has_begun()]:
            marked = await self._session.run(store.mark_begun(self._worker, [one.job.token for one in begun]))
            for one in begun:
                one.marked = one.job.token in marked


class TakingBack:
    def __init__(self, worker: UUID, session: Session, leases: Leases) -> None:
        self._worker, self._session, self._leases = worker, session, leases
        self.stalled_by_a_job = False
        """A job has stopped this process, and continued it."""

    async def run_once(self) -> None:
        await asyncio.sleep(LOOK_S)
        ended = self._leases.not_kept - self._leases.tokens  # Of the others the end is not written yet.
        if not ended:
            return
        if not self.stalled_by_a_job and (taken := await self._session.run(store.take_back(self._worker, ended))):
            _log.warning("%d losses were taken back: their leases could not be renewed in time", taken)
        self._leases.not_kept -= ended
