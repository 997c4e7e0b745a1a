"""What virtual workers and clients have seen. It knows nothing of the tables."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from outlive_lab.deaths.plan import Fate, Kind


@dataclass(slots=True)
class Life:
    """A worker. Times are those of the machine's clock, which is the database's too."""

    id: UUID
    fate: Fate
    died_s: float | None = None
    """When it was killed or froze; None: never."""
    signed_s: float = 0.0
    """When it sent the last statement that shows life."""
    told: bool = False
    """It has told that it stops."""
    cuts: list[list[float]] = field(default_factory=list)
    """When its lock was gone although it lived: from, to."""
    unsure: bool = False
    """It has sent a claim whose answer it never read."""
    declared: bool = False
    """It has learned that others declared it dead."""


@dataclass(slots=True)
class Try:
    """An attempt, as its worker knows it."""

    job: UUID
    worker: UUID
    begun: bool
    sent: set[str] = field(default_factory=set)
    """The outcomes that its worker has sent."""
    accepted: str | None = None
    renewed_s: float = 0.0
    """When its worker sent the last renewal of its lease."""


@dataclass(slots=True)
class Ask:
    """A job that a client has asked for."""

    kind: Kind
    must: bool | None
    """Whether it must exist; None: it may."""
    instead_of: UUID | None = None
    """It was asked for with the dedupe key of this one, whose answer was lost."""
    answered_s: float = 0.0


@dataclass(slots=True)
class History:
    lives: dict[UUID, Life] = field(default_factory=dict)
    tries: dict[int, Try] = field(default_factory=dict)
    asks: dict[UUID, Ask] = field(default_factory=dict)
    batches: dict[UUID, UUID] = field(default_factory=dict)
    """The batches that were acknowledged, and the ids of their callbacks."""
    deaths: Counter[Fate] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """How often incidents, troubles of clients and refused writes happened."""
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    """What a worker has seen that must never be: the rule, the worker, and what it was."""
    stood_s: float = 0.0
    """How long this process, or the server, was too busy to answer a small question within a second."""
    calm_s: float = float("inf")
    """When only a killer still killed."""
    outages: list[tuple[float, float]] = field(default_factory=list)

    def died(self, life: Life, fate: Fate | None = None) -> None:
        life.fate = fate or life.fate
        if life.died_s is None:
            life.died_s = time.time()
            self.deaths[life.fate] += 1

    @property
    def dead(self) -> int:
        return self.deaths.total()

    def hit_by_outage(self, begin_s: float, end_s: float) -> bool:
        return any(begin_s < end and start < end_s for start, end in self.outages)
