"""Completions: attempts that end in the job's own transaction, by `ctx.complete`.

The worker reads back whether that transaction was committed. It never ends such an attempt by the hot statement while
the transaction may be open: the statement would wait for its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome
from outlive.worker.attempts.leases import Leases
from outlive.worker.ending.outbox import Outbox
from outlive.worker.session import Session

EVERY_S = 0.02


class Completions:
    def __init__(self, worker: UUID, session: Session, *, leases: Leases, outbox: Outbox) -> None:
        self._worker, self._session, self._leases, self._outbox = worker, session, leases, outbox
        self.pending: list[Ended] = []
        self._some = asyncio.Event()

    def expect(self, end: Ended) -> None:
        self.pending.append(end)
        self._some.set()

    async def run_once(self) -> None:
        await self._some.wait()
        await asyncio.sleep(EVERY_S)
        ends = list(self.pending)
        tokens = [end.token for end in ends]
        committed = await self._session.run(store.ended(tokens))
        unlocked = await self._session.run(store.renew(self._worker, tokens, lease_s=self._leases.lease_s))
        held = await self._session.run(store.tokens_of(self._worker))
        for end in ends:
            # One that is not held: a standby that never received it has taken over.
            if end.token in committed or end.token not in held:
                self._leases.drop(end.token)
                with contextlib.suppress(psycopg.DataError):  # The end is written; its output matters less.
                    await self._session.run(store.add_evidence(self._worker, end))
            elif end.token in unlocked:
                self._outbox.put(unless_completed(end))
            else:
                continue
            self.pending.remove(end)
        if not self.pending:
            self._some.clear()


def unless_completed(end: Ended) -> Ended:
    """How an attempt ended whose own transaction did not complete it."""
    if end.outcome is not Outcome.SUCCEEDED:
        return end
    error = "ctx.complete was rolled back: the job's effects and its completion did not happen"
    return Ended(end.token, Outcome.FAILED, error=error, output=end.output, memory=end.memory)
