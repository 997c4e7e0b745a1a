"""Which workers are proven dead by their missing locks. This does no I/O: it is told what each check has found.

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
NEVER_LOCKED = 0
"""The key of a worker that has taken no lock since the server started."""
NEVER_LOCKED_S = 10.0
"""How long a worker may take to lock again after the server has started. A worker that died with the server is declared
dead at most 15 s after the server is back: some seconds until a reaper connects, these ten, and a check."""


class _Missing(NamedTuple):
    key: int
    since: float


class Absences:
    def __init__(self) -> None:
        self._missing: dict[UUID, _Missing] = {}
        self._never_locked_s: dict[UUID, float] = {}
        """For how long checks have found no lock since the server started. A worker's count ends with its lock."""
        self._checked_at: float | None = None
        """When the last check on this connection was."""
        self._reconnected_at = -math.inf

    @property
    def next_check_s(self) -> float:
        return MISSING_S if self._missing else CHECK_S

    def reconnected(self, now: float) -> None:
        """Checks on the lost connection prove nothing together with those on the new one.

        Only the count of workers that never locked goes on: a server that keeps crashing must not hide their deaths.
        """
        self._missing = {}
        self._checked_at = None
        self._reconnected_at = now

    def found(self, absent: Mapping[UUID, int], now: float) -> None:
        """A check has found these workers without their lock, with its key."""
        # A check that comes late proves nothing about the time before it.
        passed_s = 0.0 if self._checked_at is None else min(now - self._checked_at, 2 * CHECK_S)
        self._checked_at = now
        missing: dict[UUID, _Missing] = {}
        never_locked_s: dict[UUID, float] = {}
        for worker, key in absent.items():
            if key == NEVER_LOCKED:
                never_locked_s[worker] = self._never_locked_s.get(worker, 0.0) + passed_s
            else:
                before = self._missing.get(worker)
                missing[worker] = before if before is not None and before.key == key else _Missing(key, now)
        self._missing, self._never_locked_s = missing, never_locked_s

    def proven(self, now: float) -> dict[UUID, int]:
        """The workers that are dead, with the keys of their locks."""
        cautious = now - self._reconnected_at <= CAUTIOUS_S
        proof_s = CAUTIOUS_MISSING_S if cautious else MISSING_S
        dead = {worker: lock.key for worker, lock in self._missing.items() if now - lock.since >= proof_s}
        return dead | {
            worker: NEVER_LOCKED for worker, for_s in self._never_locked_s.items() if for_s >= NEVER_LOCKED_S
        }
