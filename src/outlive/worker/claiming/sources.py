"""Sources: the outcomes of their calls wait here to be counted."""

from __future__ import annotations

import time

from outlive import store
from outlive.model import Ended
from outlive.worker.session import Session

MAX_OUTCOMES = 10_000
AGAIN_S = 0.5
"""How long the outcomes of a source wait that another transaction has locked."""


class SourceOutcomes:
    """How calls of sources went, until the sources' breakers and rates have counted them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._outcomes: list[tuple[str, int | None, bool | None]] = []
        self._not_before = 0.0

    def note(self, source: str, end: Ended) -> None:
        if source and end.source_ok is not None:
            self._outcomes.append((source, end.token, end.source_ok))

    async def write_if_due(self) -> None:
        if self._outcomes and time.monotonic() > self._not_before:
            await self.write()

    async def write(self) -> None:
        """Count what can be counted now. Outcomes of locked sources stay, at most the newest 10,000."""
        written = list(self._outcomes)
        uncounted = await self._session.run(store.count_outcomes(written, patient=False))
        left = [written[n - 1] for n in uncounted] + self._outcomes[len(written) :]
        self._outcomes = left[-MAX_OUTCOMES:]
        self._not_before = time.monotonic() + (AGAIN_S if uncounted else 0.0)
