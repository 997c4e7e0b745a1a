"""What operators should know at once: it is logged, and sent to the command that they have set for it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC

import msgspec

from outlive import store
from outlive.config import Config
from outlive.metrics.tallies import bounded
from outlive.model import Dead
from outlive.wording import counted
from outlive.worker import withdrawals
from outlive.worker.alerts import Alerts
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

    def dead(self, workers: Sequence[Dead]) -> None:
        """This reaper has declared them dead."""
        for worker in workers:
            _log.error(
                "Dead worker detected: %s (%s on %s, pid %d): %s; it had %s",
                worker.id, worker.name, worker.hostname, worker.pid, worker.why, counted(worker.running, "job"),
            )  # fmt: skip

    async def deaths(self) -> None:
        """Run the command for workers that any reaper has declared dead: that one may have no command."""
        if command := self._config.on_worker_dead:
            untold = store.untold_deaths(within_s=DEAD_WITHIN_S, batch=self._alerts.room)
            for worker in await self._session.run(untold):
                self._alerts.send(command, "worker_dead", msgspec.structs.asdict(worker))

    async def quarantined(self) -> None:
        """Each job once, and not more at a time than the alerts have room for."""
        command = self._config.on_quarantine is not None
        for killer in await self._session.run(store.untold_killers(batch=self._alerts.room, command=command)):
            _log.warning("Job %s is quarantined: %s", killer["id"], killer["details"])
            self.quarantines[bounded(self.quarantines, killer["task"])] += 1
            self._alerts.send(self._config.on_quarantine, "quarantine", killer)

    async def breakers(self) -> None:
        """Sources that have just been paused, or work again. The database gives each change once."""
        for source in await self._session.run(store.breakers(command=self._config.on_source_paused is not None)):
            if source["paused_until"] is None:
                _log.warning("the source %s works again: its breaker is closed", source["name"])
            else:
                _log.error(
                    "the source %s is paused until %s, after %d failures in a row",
                    source["name"],
                    f"{source['paused_until'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
                    source["failure_streak"],
                )
            self._alerts.send(self._config.on_source_paused, "source_paused", source)

    async def schedules(self) -> None:
        """Schedules that are in force no more, because the last worker that declared them is gone, or again."""
        for name, app, withdrawn in await self._session.run(store.check_schedules()):
            if withdrawn:
                withdrawals.log(app, [name])
            else:
                _log.warning("the schedule %s of the app %s is in force again: a living worker declares it", name, app)

    async def crashing_tasks(self) -> None:
        command = self._config.on_quarantine is not None
        crashing = store.crashing_tasks(jobs=CRASHING_JOBS, within_s=CRASHING_WITHIN_S, command=command)
        for task in await self._session.run(crashing):
            _log.error("task %(task)s keeps crashing: %(crashes)d crashes of %(jobs)d jobs in ten minutes", task)
            self._alerts.send(self._config.on_quarantine, "task_keeps_crashing", task)
