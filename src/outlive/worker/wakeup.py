"""What wakes the claim loop, and the check for cancel requests."""

from __future__ import annotations

import asyncio

from outlive.worker import loops

NO_SOURCE = "no source"
"""The notification of a job without a source."""
CANCEL = "cancel"
"""The notification of a cancel request for a running job."""


class Wakeup:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.cancel = asyncio.Event()
        self.look = self.look_at_sources = True
        """Lanes, with or without a source, may have jobs that the last look did not find."""

    def set(self) -> None:
        """There is an end to write, or a slot is free."""
        self._event.set()

    def notify(self, payload: str = "") -> None:
        """Something was enqueued, this worker can run more tasks than before, or a running job was cancelled."""
        if payload == CANCEL:
            self.cancel.set()
            return
        self.look = True
        self.look_at_sources = self.look_at_sources or payload != NO_SOURCE
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, at_most_s: float) -> None:
        await loops.wait(self._event, at_most_s)
