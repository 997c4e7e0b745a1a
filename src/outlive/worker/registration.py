"""Registration: the database learns of this worker, its tasks and its sources, at the start and after each reload."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from outlive import store
from outlive.config import Config
from outlive.model import SourceLimits
from outlive.protocol import TaskFacts
from outlive.worker.identity import Identity
from outlive.worker.session import Session

AGAIN_S = 0.2
"""How long the limits of a locked source wait before the next try."""

_log = logging.getLogger("outlive.worker")


class Registration:
    def __init__(self, me: Identity, config: Config, session: Session) -> None:
        self._me, self._config, self._session = me, config, session
        self._tasks: Mapping[str, TaskFacts] = {}
        self._sources: Sequence[SourceLimits] = ()
        self._due = asyncio.Event()
        self._locked: list[str] = []

    def app_imported(self, tasks: Mapping[str, TaskFacts], sources: Sequence[SourceLimits]) -> None:
        self._tasks, self._sources = tasks, sources
        self._due.set()

    async def register_worker(self) -> None:
        await self._session.run(
            store.register_worker(
                self._me.id,
                name=self._me.name,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                version=version("outlive"),
                queues=self._config.queues,
                slots=self._me.slots,
                secret=self._me.secret,
                formerly=self._me.formerly,
            )
        )
        await self._register_app()
        await self._session.run(store.quarantine_killers())

    async def run_once(self) -> None:
        await self._due.wait()
        if await self._register_app():
            await asyncio.sleep(AGAIN_S)

    async def _register_app(self) -> list[str]:
        """Register tasks and sources. Returns the locked sources: they keep their old limits until the next try."""
        tasks = self._tasks
        locked = await self._session.run(store.register_sources(self._sources))
        await self._session.run(store.register_tasks(facts.limits for facts in tasks.values()))
        locked = locked + await self._session.run(store.spread_limits(tasks))
        if locked and locked != self._locked:
            _log.warning("another transaction has locked sources (%s): their new limits wait for it", ", ".join(locked))
        self._locked = locked
        if not locked and tasks is self._tasks:
            self._due.clear()
        return locked
