"""What followed jobs say, written for those who follow them.

Most jobs are not followed, and their output is written once, with the end of the attempt. `outlive.watch` tells the
worker of a job when the first follower asks.
"""

from __future__ import annotations

from uuid import UUID

from outlive import store
from outlive.worker.loops import wait
from outlive.worker.session import Session
from outlive.worker.slots import Slots
from outlive.worker.wakeup import Wakeup

EVERY_S = 0.4
"""How often the output of a followed job is written."""
CHECK_S = 5.0
"""How often followers are looked for without a notification."""


class Followed:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, wake: Wakeup) -> None:
        self._worker, self._session, self._slots, self._wake = worker, session, slots, wake
        self._written: dict[int, int] = {}
        """How many lines of each followed attempt are written, by token."""

    async def run_once(self) -> None:
        await wait(self._wake.watch, EVERY_S if self._written else CHECK_S)
        self._wake.watch.clear()
        if self._slots.busy:
            await self.write()
        else:
            self._written.clear()

    async def write(self) -> None:
        """Write what is new."""
        followed = await self._session.run(store.watched(self._worker))
        running = {child.current.job.token: child.said for child in self._slots.busy}
        outputs = []
        for token, begun in followed.items():
            said = running.get(token)
            lines = 0 if said is None else said.lines
            if token in running and (not begun or self._written.get(token) != lines):
                outputs.append((token, *(said.so_far() if said is not None else (0, ""))))
        if outputs:
            await self._session.run(store.write_output(self._worker, outputs))
        self._written = {token: self._written.get(token, 0) for token in followed if token in running}
        self._written |= {token: lines for token, lines, _ in outputs}
