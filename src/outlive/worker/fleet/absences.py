"""Which workers are proven dead by their missing locks. This does no I/O: the reaper reports what each check has found.

One missing lock proves nothing: a living worker whose connection broke takes its lock again at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

CHECK_S = 1.0
"""How often locks are checked."""
MISSING_S = 0.5
"""How long a lock must be missing, and how soon the next check follows one that has found a missing lock."""
CAUTIOUS_S = 5.0
"""How long a reaper is cautious after its own connection was replaced: what ended it may have ended others too."""
CAUTIOUS_MISSING_S = 3.0
"""How long a lock must be missing for a cautious reaper."""


class _Missing(NamedTuple):
    key: int
    since: float


class Absences:
    def __init__(self) -> None:
        self._missing: dict[UUID, _Missing] = {}
        self._generation = 0
        self.reconnected_at = self._checked_at = -math.inf

    @property
    def next_check_s(self) -> float:
        return MISSING_S if self._missing else CHECK_S

    def connected(self, generation: int, now: float) -> None:
        """The next check is made on this connection. Earlier checks on another one prove nothing together with it."""
        if generation != self._generation:
            if self._generation:  # The first connection replaces none.
                self._missing, self.reconnected_at = {}, now
            self._generation = generation

    def found(self, absent: Mapping[UUID, int], now: float) -> None:
        """A check has found these workers without their lock, with its key."""
        before = self._missing if now - self._checked_at <= CAUTIOUS_S else {}  # It did not watch in between.
        self._checked_at = now
        self._missing = {
            worker: before[worker] if worker in before and before[worker].key == key else _Missing(key, now)
            for worker, key in absent.items()
        }

    def proven(self, now: float) -> dict[UUID, int]:
        """The workers that are dead, with the keys of their locks."""
        cautious = now - self.reconnected_at <= CAUTIOUS_S
        proof_s = CAUTIOUS_MISSING_S if cautious else MISSING_S
        return {worker: lock.key for worker, lock in self._missing.items() if now - lock.since >= proof_s}
