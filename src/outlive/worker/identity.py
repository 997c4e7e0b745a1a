"""Who a worker is."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from uuid import UUID, uuid4

from outlive import store
from outlive.config import Config
from outlive.statement import Statement


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    slots: int
    formerly: UUID | None
    """Its id before other workers declared it dead."""
    id: UUID = field(default_factory=uuid4)
    secret: UUID = field(default_factory=uuid4, repr=False)
    """The secrets of its attempts are derived from this one. No job knows it."""

    def registering(self, config: Config) -> Statement[None]:
        """The statement that registers this process as a worker with these settings."""
        return store.register_worker(
            self.id,
            name=self.name,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=version("outlive"),
            queues=config.queues,
            slots=self.slots,
            secret=self.secret,
            formerly=self.formerly,
            config=config,
        )

    def secret_of(self, token: int) -> str:
        """The secret of an attempt, as `outlive.attempt_secret` derives it in the database."""
        return hashlib.sha256(f"{self.secret}{token}".encode()).hexdigest()[:32]
