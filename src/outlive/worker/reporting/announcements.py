"""What operators should know at once: it is logged, and sent to the command that they have set for it."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC

import msgspec

from outlive import store
from outlive.config import Config
from outlive.humanize import short_id
from outlive.metrics.tallies import bounded
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.session import Session

DEAD_WITHIN_S = 60.0
"""How long after a death its alert is still sent, by a worker that has a command for it."""
CRASHING_JOBS = 5
CRASHING_WITHIN_S = 600.0

_log = logging.getLogger("outlive.worker")


class Announcements:
    def __init__(self, session: Session, config: Config, alerts: Alerts) -> None:
        self._session, self._config, self._alerts = session, config, alerts
        self.quarantines: Counter[str] = Counter()
        """How many jobs were announced, by task."""

    async def deaths(self) -> None:
        """Run the command for workers that any reaper has declared dead: that one may have no command."""
        if command := self._config.on_worker_dead:
            untold = store.untold_deaths(within_s=DEAD_WITHIN_S, batch=self._alerts.room)
            for worker in await self._session.run(untold):
                self._alerts.send(command, "worker_dead", msgspec.structs.asdict(worker))

    async def quarantined(self) -> None:
        """Each job once, and not more at a time than the alerts have room for."""
        command = self._config.on_quarantine
        untold = store.untold_killers(batch=self._alerts.room, command=command is not None)
        for killer in await self._session.run(untold):
            about = {"job_id": killer["id"], "task": killer["task"], "worker": killer.pop("worker")}
            _log.warning("Job %s is quarantined: %s", short_id(killer["id"]), killer["details"], extra=about)
            self.quarantines[bounded(self.quarantines, killer["task"])] += 1
            self._alerts.send(command, "quarantine", killer)

    async def breakers(self) -> None:
        """Sources that have just been paused, or work again. The database returns each change once."""
        command = self._config.on_source_paused
        for source in await self._session.run(store.breakers(command=command is not None)):
            if source["paused_until"] is None:
                _log.warning("the source %s works again: its breaker is closed", source["name"])
            else:
                until = f"{source['paused_until'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
                paused = "the source %s is paused until %s, after %d failures in a row"
                _log.error(paused, source["name"], until, source["failure_streak"])
            self._alerts.send(command, "source_paused", source)

    async def crashing_tasks(self) -> None:
        command = self._config.on_quarantine
        crashing = store.crashing_tasks(jobs=CRASHING_JOBS, within_s=CRASHING_WITHIN_S, command=command is not None)
        for task in await self._session.run(crashing):
            _log.error("task %(task)s keeps crashing: %(crashes)d crashes of %(jobs)d jobs in ten minutes", task)
            self._alerts.send(command, "task_keeps_crashing", task)
