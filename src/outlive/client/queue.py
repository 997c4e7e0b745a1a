"""A handle on a queue: pausing it, and resuming it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlive import store

if TYPE_CHECKING:
    from outlive.client.statement_runner import StatementRunner


@dataclass(frozen=True, slots=True)
class Queue:
    """A handle on a queue. It holds only the queue's name, and each call asks the database."""

    name: str
    """The name of the queue."""
    _runner: StatementRunner = field(repr=False, compare=False)

    def pause(self) -> None:
        """Let no worker claim jobs of the queue until it is resumed. Those that run go on."""
        self._runner.run(store.pause_queue(self.name))

    async def apause(self) -> None:
        """The async twin of `pause`."""
        await self._runner.arun(store.pause_queue(self.name))

    def resume(self) -> bool:
        """Let workers claim its jobs again. False if it was not paused."""
        return self._runner.run(store.resume_queue(self.name))

    async def aresume(self) -> bool:
        """The async twin of `resume`."""
        return await self._runner.arun(store.resume_queue(self.name))
