"""Handles on queues, workers and schedules: what operators do with them, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from outlive import store, validation
from outlive.errors import ConfigError
from outlive.statement import Statement

if TYPE_CHECKING:
    from outlive.client.statement_runner import StatementRunner


@dataclass(frozen=True, slots=True)
class Queue:
    """A handle on a queue. It holds only the queue's name, and each call asks the database."""

    name: str
    """The name of the queue."""
    _runner: StatementRunner = field(repr=False, compare=False)

    def pause(self) -> None:
        """Let no worker claim jobs of the queue until it is resumed. Those that run go on. Every worker obeys within
        three seconds."""
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

    def drain(self) -> bool:
        """Let the worker take no more jobs, finish those that it runs, and stop. False if no worker of this name is
        active. It does not wait for that."""
        return bool(self._runner.run(store.drain_workers(self.name)))

    async def adrain(self) -> bool:
        """The async twin of `drain`."""
        return bool(await self._runner.arun(store.drain_workers(self.name)))

    def set(self, *, slots: int | None = None, queues: Sequence[str] | None = None) -> bool:
        """Give the worker other slots or queues (an empty list: all) while it runs, until it stops. Jobs that run go
        on. False if no worker of this name is active."""
        return bool(self._runner.run(self._setting(slots, queues)))

    async def aset(self, *, slots: int | None = None, queues: Sequence[str] | None = None) -> bool:
        """The async twin of `set`."""
        return bool(await self._runner.arun(self._setting(slots, queues)))

    def _setting(self, slots: int | None, queues: Sequence[str] | None) -> Statement[list[UUID]]:
        values: dict[str, object] = {} if slots is None else {"slots": validation.count("slots", slots)}
        values |= {} if queues is None else {"queues": validation.identifiers("queues", queues)}
        if not values:
            raise ConfigError("worker.set needs slots=… or queues=…: say what the worker is to have")
        return store.set_worker(self.name, values)

    def reload(self) -> bool:
        """Let the worker import its code again. False if no worker of this name is active.

        Jobs that run go on with the old code. If the new code can't be imported, `outlive workers` says why.
        """
        return bool(self._runner.run(store.reload_workers(self.name)))

    async def areload(self) -> bool:
        """The async twin of `reload`."""
        return bool(await self._runner.arun(store.reload_workers(self.name)))


@dataclass(frozen=True, slots=True)
class ScheduleHandle:
    """A handle on a schedule. It holds only its name, and each call asks the database: BadArguments if it has no
    schedule of this name."""

    name: str
    """The name of the schedule: that of its task, unless it was given another."""
    _runner: StatementRunner = field(repr=False, compare=False)

    def pause(self) -> None:
        """Stop firing the schedule. Its jobs go on."""
        self._runner.run(store.pause_schedule(self.name))

    async def apause(self) -> None:
        """The async twin of `pause`."""
        await self._runner.arun(store.pause_schedule(self.name))

    def resume(self) -> None:
        """Fire the schedule again. What it has missed meanwhile follows its option `missed`."""
        self._runner.run(store.resume_schedule(self.name))

    async def aresume(self) -> None:
        """The async twin of `resume`."""
        await self._runner.arun(store.resume_schedule(self.name))

    def run(self) -> UUID:
        """Enqueue a job of the schedule now, beside its firings, also while it is paused. Returns the job's id."""
        return self._runner.run(store.run_schedule(self.name))

    async def arun(self) -> UUID:
        """The async twin of `run`."""
        return await self._runner.arun(store.run_schedule(self.name))

    def reset(self) -> None:
        """Take back what operators have set: the app's declaration applies again. A pause stays."""
        self._runner.run(store.reset_schedule(self.name))

    async def areset(self) -> None:
        """The async twin of `reset`."""
        await self._runner.arun(store.reset_schedule(self.name))

    def remove(self) -> None:
        """Delete the schedule. If an app declares it, the next worker of that app to start makes it again."""
        self._runner.run(store.remove_schedule(self.name))

    async def aremove(self) -> None:
        """The async twin of `remove`."""
        await self._runner.arun(store.remove_schedule(self.name))
