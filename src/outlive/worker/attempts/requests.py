"""What people ask of running jobs: that they stop, and to see what they print and use. A notification announces it.

Most jobs are not followed: their output and memory are written once, with the end of the attempt.
"""

from __future__ import annotations

from uuid import UUID

from outlive import store
from outlive.model import MemoryCourse
from outlive.output import LiveOutput
from outlive.states import Outcome
from outlive.worker.limits.watch import Watch
from outlive.worker.loops import wait
from outlive.worker.processes.job_output import JobOutput
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

CANCELS_S = 0.5
FOLLOWERS_S = 5.0
"""How often either is looked for without a notification."""
NO_OUTPUT = JobOutput()
WRITE_S = 0.4
"""How often the output of a followed job is written."""


class Requests:
    def __init__(self, worker: UUID, session: Session, *, slots: Slots, watch: Watch, wake: Wakeup) -> None:
        self._worker, self._session, self._slots, self._watch, self._wake = worker, session, slots, watch, wake
        self._written: dict[int, tuple[int, MemoryCourse | None, str]] = {}
        """How many lines of each followed attempt are written, its memory, and its steps under way, by token."""

    async def cancel_once(self) -> None:
        await wait(self._wake.cancel, CANCELS_S)
        self._wake.cancel.clear()
        if not self._slots.busy and not self._slots.unplaced:
            return
        tokens = await self._session.run(store.cancels(self._worker))
        if tokens:
            self._slots.cancel(tokens)
        for child, one in self._slots.running:
            if one.job.token in tokens and one.verdict is None:
                self._watch.end(child, one, Outcome.CANCELLED, "cancelled on request")

    async def write_output_once(self) -> None:
        """Write what is new of the followed jobs."""
        await wait(self._wake.watch, WRITE_S if self._written else FOLLOWERS_S)
        self._wake.watch.clear()
        if not self._slots.busy:
            self._written.clear()
            return
        followed = await self._session.run(store.watched(self._worker))
        running = {one.job.token: (child, one) for child, one in self._slots.running}
        written: dict[int, tuple[int, MemoryCourse | None, str]] = {}
        new: list[LiveOutput] = []
        for token in followed.keys() & running.keys():
            child, one = running[token]
            lines, text = ((one.output or NO_OUTPUT) if child.shared else child.output).so_far()
            memory = None if one.series is None else one.series.course(one.memory_bytes)
            steps = child.steps_under_way()
            written[token] = lines, memory, steps
            before = self._written.get(token) if followed[token] else None
            if before != written[token]:
                has_text = before is not None and before[0] == lines
                new.append(LiveOutput(token, lines, None if has_text else text, memory, steps))
        if new:
            await self._session.run(store.write_output(self._worker, new))
        self._written = written
