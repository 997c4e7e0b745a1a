"""Handles on queues and on workers: what operators do with them, from Python."""

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


@dataclass(frozen=True, slots=True)
class Worker:
    """A handle on the workers of a name. It holds only the name, and each call asks the database."""

    name: str
    """The name of the worker."""
    _runner: StatementRunner = field(repr=False, compare=False)

    def reload(self) -> bool:
        """Let the worker import its code again. False if no worker of this name is active.

        Jobs that run go on with the old code. If the new code can't be imported, `outlive workers` says why.
        """
        return bool(self._runner.run(store.reload_workers(self.name)))

    async def areload(self) -> bool:
        """The async twin of `reload`."""
        return bool(await self._runner.arun(store.reload_workers(self.name)))
