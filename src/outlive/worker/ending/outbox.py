"""The outbox: how attempts ended, until the database has it.

Most ends wait here until the claim loop writes them (claiming/end_and_claim.py). Those that could delay the others
(they carry records or spawned jobs, or another transaction has locked their rows) go through `SlowEnds`.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from outlive.model import Ended
from outlive.worker.attempts.leases import Leases
from outlive.worker.ending.slow_ends import SlowEnds
from outlive.worker.wakeup import Wakeup


class Outbox:
    def __init__(self, worker: UUID, url: str, leases: Leases, wake: Wakeup) -> None:
        self.leases, self._wake = leases, wake
        self.waiting: list[Ended] = []
        self.slow = SlowEnds(worker, url, leases, self.put)

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

    def take(self) -> list[Ended]:
        taken, self.waiting = self.waiting, []
        return taken

    def put_back(self, ends: list[Ended]) -> None:
        self.waiting = ends + self.waiting

    def set_aside(self, tokens: Collection[int]) -> None:
        """The rows of these are locked: others don't wait for them."""
        for end in self.waiting:
            if end.token in tokens:
                self.slow.add_locked(end)
        self.waiting = [end for end in self.waiting if end.token not in tokens]

    def keep(self, tokens: Collection[int]) -> None:
        """Drop the ends of attempts that the database no longer has under this worker."""
        self.waiting = [end for end in self.waiting if end.token in tokens]
        self.slow.keep(tokens)
