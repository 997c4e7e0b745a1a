"""Reconciliation: after a statement whose outcome is unknown, the worker reads which attempts the database has for it.

A connection may break after the server has committed a claim or an end. The worker then recovers the attempts that it
did not know of, and only then claims again. It repeats this with every renewal: the server may still be at work on that
statement when it is first asked.
"""

from __future__ import annotations

import logging
import time
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Claimed, Ended
from outlive.states import Outcome
from outlive.worker.ending.outbox import Outbox, failed_for_good
from outlive.worker.processes.assignments import GIVEN_UP
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session

_log = logging.getLogger("outlive.worker")


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
        if self.unsure or unknown:
            _log.info("reconciled: %d ends were written already, %d claims are recovered", len(written), len(unknown))
        return unknown

    async def _read_held(self) -> tuple[dict[int, Claimed], list[Ended]]:
        """What the database has under this worker, and ends for the attempts whose rows can't be read."""
        try:
            return {job.token: job for job in await self._session.run(store.held_attempts(self._worker))}, []
        except (psycopg.DataError, ValueError) as error:
            _log.error("a job of this worker can't be read, and fails: %s", error)
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
                _log.error("the database no longer has attempt %d: its process is killed", one.job.token)
                self._leases.disown(one.job.token)
                one.decide(GIVEN_UP)

    @property
    def waits_for_disowned(self) -> bool:
        """Whether a process still runs an attempt that this worker has lost."""
        return any(self._leases.disowned(token) for child in self._slots.busy for token in child.given)
