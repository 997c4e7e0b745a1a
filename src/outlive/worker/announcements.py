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
from outlive.worker.alerts import Alerts
from outlive.worker.session import Session

LEAVE_TO_OTHERS_S = 2.0
"""How long a worker without a command leaves quarantined jobs to workers that have one."""
CRASHING_JOBS = 5
CRASHING_WITHIN_S = 600.0

_log = logging.getLogger("outlive.worker")


class Announcements:
    def __init__(self, session: Session, config: Config, alerts: Alerts) -> None:
        self._session, self._config, self._alerts = session, config, alerts
        self.quarantines: Counter[str] = Counter()
        """How many jobs were announced, by task."""

    def dead(self, workers: Sequence[Dead], why: str) -> None:
        for worker in workers:
            _log.error(
                "Dead worker detected: %s (%s on %s, pid %d): %s; it had %s",
                worker.id, worker.name, worker.hostname, worker.pid, why, counted(worker.running, "job"),
            )  # fmt: skip
            self._alerts.send(
                self._config.on_worker_dead, "worker_dead", {**msgspec.structs.asdict(worker), "why": why}
            )

    async def quarantined(self) -> None:
        """Each job once, and not more at a time than the alerts have room for."""
        after_s = 0.0 if self._config.on_quarantine else LEAVE_TO_OTHERS_S
        for killer in await self._session.run(store.untold_killers(batch=self._alerts.room, after_s=after_s)):
            _log.warning("Job %s is quarantined: %s", killer["id"], killer["details"])
            self.quarantines[bounded(self.quarantines, killer["task"])] += 1
            self._alerts.send(self._config.on_quarantine, "quarantine", killer)

    async def breakers(self) -> None:
        """Sources that have just been paused, or work again. The database gives each change once."""
        for source in await self._session.run(store.breakers()):
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

    async def crashing_tasks(self) -> None:
        crashing = store.crashing_tasks(jobs=CRASHING_JOBS, within_s=CRASHING_WITHIN_S)
        for task in await self._session.run(crashing):
            _log.error("task %(task)s keeps crashing: %(crashes)d crashes of %(jobs)d jobs in ten minutes", task)
            self._alerts.send(self._config.on_quarantine, "task_keeps_crashing", task)
