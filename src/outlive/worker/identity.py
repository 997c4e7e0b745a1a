"""Who a worker is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from uuid import UUID, uuid4


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    slots: int
    formerly: UUID | None
    """Its id before other workers declared it dead."""
    id: UUID = field(default_factory=uuid4)
    secret: UUID = field(default_factory=uuid4, repr=False)
    """The secrets of its attempts are derived from this one. No job knows it."""

    def secret_of(self, token: int) -> str:
        """The secret of an attempt, as `outlive.attempt_secret` derives it in the database."""
        return hashlib.sha256(f"{self.secret}{token}".encode()).hexdigest()[:32]
