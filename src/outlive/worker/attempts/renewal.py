"""Lease renewal: keep the attempts that children work on, and kill those that belong to another worker now.

No job is charged for a lease that its living worker could not renew. If a reaper has ended such an attempt as lost,
`TakingBack` takes the loss back, unless a job has stopped this process: nothing else can be charged to that job.

After a statement whose outcome is unknown, `Reconciliation` reads which attempts the database has for this worker: a
connection may break after the server has committed a claim or an end. The worker then recovers the attempts that it did
not know of, and only then claims again. It repeats this with every renewal: the server may still be at work on that
statement when it is first asked.
"""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Claimed, Ended
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.ending.outbox import Outbox, failed_for_good
from outlive.worker.processes.assignments import GIVEN_UP
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

LOOK_S = 0.5
MARK_S = 0.1


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
                log.error("attempt %d was given up by another worker: its process is killed", token)
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
            log.warning("%d losses were taken back: their leases could not be renewed in time", taken)
        self._leases.not_kept -= ended


class Reconciliation:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, outbox: Outbox) -> None:
        self._worker, self._session = worker, session
        self._slots, self._leases, self._outbox = slots, slots.leases, outbox
        self.unsure = False
        """A statement was sent whose outcome is not known: the database may have claims that are not known here."""
        self._done_at, self._done_in = time.monotonic(), -1
        """The time, and the number of the connection: a new one may lead to a server that lacks some attempts."""

    async def run_if_due(self) -> list[Claimed]:
        """The attempts that this worker did not know of, if it is time to ask: the answer to their claim was lost."""
        await self._session.open()
        asked_at = time.monotonic()
        overdue = asked_at - self._done_at > self._leases.renew_s
        if not self.unsure and not overdue and self._done_in == self._session.generation:
            return []
        unknown = await self._run()
        self.unsure, self._done_at, self._done_in = False, asked_at, self._session.generation
        return unknown

    async def _run(self) -> list[Claimed]:
        """Drop what the database does not have, and return the attempts that this worker did not know of."""
        known = set(self._leases.tokens)
        held, unreadable = await self._read_held()
        unwritten = {end.token: end for end in self._outbox.unwritten}
        written = unwritten.keys() - held.keys()
        self._outbox.keep(held.keys())
        self._disown((known & self._leases.tokens) - held.keys() - unwritten.keys())
        for token in written:  # Or others have ended it.
            (self._leases.drop if unwritten[token].outcome is Outcome.LOST else self._leases.lose)(token)
        self._outbox.waiting += unreadable
        known |= self._leases.tokens | unwritten.keys()
        unknown = [job for token, job in held.items() if token not in known]
        if unknown or (self.unsure and written):
            log.info("reconciled: %d ends were written already, %d claims are recovered", len(written), len(unknown))
        return unknown

    async def _read_held(self) -> tuple[dict[int, Claimed], list[Ended]]:
        """What the database has under this worker, and ends for the attempts whose rows can't be read."""
        try:
            return {job.token: job for job in await self._session.run(store.held_attempts(self._worker))}, []
        except (psycopg.DataError, ValueError) as error:
            log.error("a job of this worker can't be read, and fails: %s", error)
        held: dict[int, Claimed] = {}
        unreadable: list[Ended] = []
        for token in await self._session.run(store.tokens_of(self._worker)):
            try:
                held |= {job.token: job for job in await self._session.run(store.held_attempts(self._worker, [token]))}
            except (psycopg.DataError, ValueError) as error:
                unreadable.append(failed_for_good(token, f"its row can't be read: {error}"))
        return held, unreadable

    def _disown(self, tokens: set[int]) -> None:
        """Kill these: others have declared them lost, or a standby has taken over that never received them.

        A standby issues the same tokens again. So their ends are not written, and nothing is claimed until they end.
        """
        for one in self._slots.withdraw(lambda one: one.job.token in tokens):
            self._leases.lose(one.job.token)
        for one in [one for child in self._slots.busy for one in child.given.values()]:
            if one.job.token in tokens and not one.completing:
                log.error("the database no longer has attempt %d: its process is killed", one.job.token)
                self._leases.disown(one.job.token)
                one.decide(GIVEN_UP)

    @property
    def waits_for_disowned(self) -> bool:
        """Whether a process still runs an attempt that this worker has lost."""
        return any(self._leases.disowned(token) for child in self._slots.busy for token in child.given)
