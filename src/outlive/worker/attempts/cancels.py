"""Cancel requests: jobs that wait end at once, running ones get SIGTERM and then SIGKILL."""

from __future__ import annotations

from uuid import UUID

from outlive import store
from outlive.states import Outcome
from outlive.worker.limits.watch import Watch
from outlive.worker.loops import wait
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

CHECK_S = 0.5
"""How often requests are looked for without a notification."""


class Cancels:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, watch: Watch, wake: Wakeup) -> None:
        self._worker, self._session, self._slots, self._watch, self._wake = worker, session, slots, watch, wake

    async def run_once(self) -> None:
        await wait(self._wake.cancel, CHECK_S)
        self._wake.cancel.clear()
        if not self._slots.busy and not self._slots.unplaced:
            return
        tokens = await self._session.run(store.cancels(self._worker))
        if tokens:
            self._slots.cancel(tokens)
        for child in self._slots.busy:
            if child.current.job.token in tokens and child.current.verdict is None:
                self._watch.end(child, Outcome.CANCELLED, "cancelled on request")
