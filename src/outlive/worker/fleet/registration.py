"""Registration: it writes this worker and its app into the database.

Tasks and sources are written after each import of the app. Schedules are declared by a worker that starts, and when a
reload has changed them: so a worker of an older version that merely runs on takes back nothing that newer ones have
declared. It declares a schedule again only if no living worker of the app that took it over declares it any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from uuid import UUID, uuid4

import psycopg

from outlive import store
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.humanize import counted, few
from outlive.importing import full_name
from outlive.model import Schedule, SourceLimits
from outlive.policy import TaskRow
from outlive.protocol import Ready
from outlive.statement import Statement
from outlive.worker import log
from outlive.worker.fleet.schedules import Schedules
from outlive.worker.loops import wait
from outlive.worker.session import Session

AGAIN_S = 0.2
"""How long what another transaction has locked waits before the next try."""

_APART = (
    "the app {0} has tasks of the same name and active workers, and each worker claims the jobs of both: {1}; give the "
    "tasks names of their own with name=…, or, if it is one app under two names, set OUTLIVE_SERVICE={0} here"
)

_TAKEN_OVER = (
    "the app {0} had tasks of the same name with other functions, and their unfinished jobs run here now: {1}; if {0} "
    "is this app before a move, all is well; if not, stop this worker and give its tasks names of their own with name=…"
)

_RIVAL_SOURCES = (
    "another app may have declared other limits for %s, and those of this app hold now, for both: declare the same "
    "limits in both, or give the sources names of their own"
)


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


class Registration:
    def __init__(
        self, me: Identity, target: str, config: Config, session: Session, live: Session, schedules: Schedules
    ) -> None:
        """`session` is for what may wait for others that register, `live` for what every worker asks at times."""
        self._me, self._app, self._config, self._session = me, config.service or full_name(target), config, session
        self._live, self._schedules = live, schedules
        self._tasks: Mapping[str, TaskRow] = {}
        self._served: Collection[str] = ()
        """Those that need no label that this worker lacks."""
        self._sources: Sequence[SourceLimits] = ()
        self._to_declare: Sequence[Schedule] = ()
        self._declared: Sequence[Schedule] | None = None
        self._due = asyncio.Event()
        self._locked: list[str] = []
        self._known_rivals: set[str] = set()

    def app_imported(self, served: Collection[str], ready: Ready) -> None:
        self._tasks, self._served = {one.name: one for one in ready.tasks}, served
        self._sources, self._to_declare = ready.sources, ready.schedules
        if left := sorted(self._tasks.keys() - {*served}):
            need = counted(len(left), "task needs", "tasks need")
            log.info("%s labels that this worker does not have: %s", need, few(left))
        if self._me.formerly is not None and self._declared is None:
            self._declared = ready.schedules  # It has declared them under its former id.
        self._due.set()

    async def register_worker(self) -> None:
        await self._check_names()
        await self._session.run(self._me.registering(self._config))
        await self._register_app()
        await self._session.run(store.quarantine_killers())

    async def run_once(self) -> None:
        await wait(self._due, self._config.sweep_s)
        if not self._due.is_set():
            await self._take_back_schedules()
        elif not await self._register_app():
            await asyncio.sleep(AGAIN_S)

    async def _register_app(self) -> bool:
        """Register tasks, sources and schedules. False: other transactions have locked some, so it must be repeated."""
        run, tasks = self._session.run, self._tasks
        if rivals := await run(store.rival_sources(self._app, self._sources)):
            log.warning(_RIVAL_SOURCES, f"the source{'s' * (len(rivals) > 1)} {few(rivals)}")
        locked = await run(store.register_sources(self._sources))
        await self._log_rivals()
        await run(store.register_tasks(tasks.values()))
        names = [schedule.name for schedule in self._to_declare]
        await run(store.tell_tasks(self._me.id, self._served, app=self._app, schedules=names))
        locked = [f"the source {name}" for name in locked + await run(store.spread_limits(tasks))]
        if (schedules := self._to_declare) != self._declared:
            try:
                await self._schedules.declare(schedules, self._app)
                self._declared = schedules
            except psycopg.errors.LockNotAvailable:
                locked.append("schedules")
        if locked and locked != self._locked:
            log.warning("another transaction has locked %s: what this app declares waits for it", ", ".join(locked))
        self._locked = locked
        if not locked and tasks is self._tasks:
            self._due.clear()
        return not locked

    async def _others(self, verb: Callable[..., Statement[list[store.Rival]]]) -> list[store.Rival]:
        """The other apps with tasks of the same name that this verb finds."""
        functions = [facts.function for facts in self._tasks.values()]
        return await self._session.run(verb(self._app, self._tasks, functions))

    async def _check_names(self) -> None:
        """Refuse to start beside an app whose tasks of the same name are other functions.

        An app whose workers have stopped may be this one before its module moved, so it is not refused. Once its
        functions are registered, no other worker logs that its jobs run here.
        """
        for rival in await self._others(store.rival_tasks):
            if not rival.same:
                raise ConfigError(_APART.format(rival.app, few(rival.tasks)))
        for former in await self._others(store.taken_over_tasks):
            log.error(_TAKEN_OVER.format(former.app, few(former.tasks)))

    async def _log_rivals(self) -> None:
        """Log, once, that another app has tasks of the same name, since a reload or with the same functions."""
        rivals = {rival.app: rival for rival in await self._others(store.rival_tasks)}
        for app in rivals.keys() - self._known_rivals:
            log.error(_APART.format(app, few(rivals[app].tasks)))
        self._known_rivals = set(rivals)

    async def _take_back_schedules(self) -> None:
        """Declare again what another app has taken over and dropped."""
        if not self._to_declare:
            return
        orphaned = await self._live.run(store.orphaned_schedules(self._me.id))
        if mine := [schedule for schedule in self._to_declare if schedule.name in orphaned]:
            await self._schedules.declare(mine, self._app)
