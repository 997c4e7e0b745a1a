"""The vital signs of a process: whether it is alive and ready, and its figures. Probes, systemd and Prometheus ask."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version

from outlive import db
from outlive.humanize import counted
from outlive.metrics import catalogue
from outlive.metrics.database import SILENT, DatabaseMetrics
from outlive.metrics.exposition import Figures, Values
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.fleet.registration import Identity
from outlive.worker.services import Services
from outlive.worker.session import Session

TURN_S = 120.0
"""A loop that has begun no turn for this long hangs. A turn ends much earlier, also if the database is silent."""
UP_S = 10.0
"""The database is away if it has answered nothing for this long. Every process asks it something each second."""


class WorkerVitals:
    def __init__(self, me: Identity) -> None:
        self._at_first = me
        self.services: Services | None = None
        """Set once the app is imported. It may set the name and the slots of its workers."""
        self.started = self.stopping = False

    def dead(self) -> str | None:
        """Why this process should be restarted; None if it is alive."""
        return _hangs("claim", self.services.claims.turned_at) if self.services and self.started else None

    def unready(self) -> str | None:
        """Why this process does not work at present; None if it does."""
        if self.stopping:
            return "this worker stops"
        if self.services is None:
            return "the app is being imported"
        if not self.started:
            return "this worker registers itself"
        if (silence := _silence(self.services.sessions)) is not None:
            return silence
        if (trouble := self.services.slots.trouble) is not None:
            return f"this worker can't begin any job: {trouble}"
        return self.dead()

    @property
    def _size(self) -> int:
        return self.services.slots.size if self.services else self._at_first.slots

    def status(self) -> str:
        slots = self.services.slots if self.services else None
        busy, jobs = (len(slots.busy), len(slots.running)) if slots else (0, 0)
        words = f"{busy} of {counted(self._size, 'slot is', 'slots are')} busy"
        words += f" with {counted(jobs, 'job')}" if jobs > busy else ""
        return f"{unready}; {words}" if (unready := self.unready()) else words

    def figures(self) -> Figures:
        services = self.services
        me = services.me if services else self._at_first
        found = {catalogue.WORKER: [((me.name, str(me.id), version("outlive")), 1.0)]}
        if services is None:
            return {**found, catalogue.SLOTS: _only(self._size), catalogue.UP: _only(0)}
        return {
            **(services.tallies.figures() if services.tallies else {}),
            **found,
            catalogue.SLOTS: _only(self._size),
            catalogue.SLOTS_BUSY: _only(len(services.slots.busy)),
            catalogue.RUNNING: _only(len(services.slots.running)),
            catalogue.RENEWALS: _only(services.leases.renewals),
            catalogue.FENCED: _only(services.leases.fenced),
            **_of_process(services.reaper, services.sessions),
        }

    @property
    def database(self) -> DatabaseMetrics | None:
        """The figures of the whole database; None if it is not connected yet."""
        return self.services.metrics if self.services else None


class ReaperVitals:
    """Those of `outlive reap`."""

    def __init__(self, reaper: Reaper, metrics: Session) -> None:
        self._reaper, self._sessions = reaper, (reaper.session, metrics)
        self.database = DatabaseMetrics(metrics.run, lambda: db.named(metrics.url))
        self.stopping = False

    def dead(self) -> str | None:
        return _hangs("reap", self._reaper.checked_at)

    def unready(self) -> str | None:
        if self.stopping:
            return "this reaper stops"
        return _silence(self._sessions) or self.dead()

    def status(self) -> str:
        return self.unready() or f"{self._reaper.attempts_ended} attempts were ended"

    def figures(self) -> Figures:
        return _of_process(self._reaper, self._sessions)


Vitals = WorkerVitals | ReaperVitals


def _of_process(reaper: Reaper, sessions: Iterable[Session]) -> Figures:
    trips: Counter[str] = Counter()
    for session in sessions:
        trips.update(session.round_trips)
    return {
        catalogue.QUARANTINED: [((task,), count) for task, count in reaper.announcements.quarantines.items()],
        catalogue.REAPED: _only(reaper.attempts_ended),
        catalogue.ROUND_TRIPS: [((statement,), count) for statement, count in trips.items()],
        catalogue.UP: _only(_answered(sessions)),
    }


def _only(figure: float) -> Values:
    """The figure of a metric without labels."""
    return [((), float(figure))]


def _answered(sessions: Iterable[Session]) -> bool:
    return time.monotonic() - max(session.answered_at for session in sessions) < UP_S


def _silence(sessions: Iterable[Session]) -> str | None:
    """Why the database is of no use to this process; None if it answers."""
    return None if _answered(sessions) else next((one.lacks for one in sessions if one.lacks), SILENT)


def _hangs(loop: str, turned_at: float) -> str | None:
    idle_s = time.monotonic() - turned_at
    return f"the {loop} loop has begun no turn for {idle_s:.0f} s" if idle_s > TURN_S else None
