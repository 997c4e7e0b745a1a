"""Schedules: declares those of this worker's app, and makes the jobs of all that are due.

Every watcher (seat.py) looks for these. One of them makes the jobs of a tick: the statement compares when the schedule
was due with what this worker has read, and skips a row that another worker has locked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from outlive import db, program, store, timetable
from outlive.errors import ConfigError
from outlive.humanize import counted
from outlive.model import Declared, DueSchedule, Fired, Schedule
from outlive.worker import log
from outlive.worker.loops import wait
from outlive.worker.session import Runner, Session

LATE = timedelta(seconds=10)
"""A firing that is later than this was missed."""
MOST_TICKS = MOST_AT_ONCE = 1000
"""How many missed firings are made up for at most, the newest ones, and how many schedules are read at once."""
LOOK_S = 1.0
"""How soon a schedule is noticed that another worker has declared, or that an operator has changed."""
_LOCKED = frozenset({"55P03", "57014"})
_NOT_THE_ROW = ("08", "25", "40", "42501", "53", "57")
"""How the SQLSTATEs begin that would meet every schedule: the connection, the mode, the role or the server."""


class Schedules:
    def __init__(self, reading: Session, firing: Runner) -> None:
        self._reading, self._firing = reading, firing
        self._news = asyncio.Event()
        self._fired = 0
        self._locked: set[str] = set()
        """The schedules whose last firing had to wait for a lock."""

    async def declare(self, schedules: Sequence[Schedule], app: str) -> None:
        _log_declaration(await self._firing.run(store.declare_schedules(schedules, app)), app)
        self._news.set()

    async def run_once(self) -> None:
        self._news.clear()
        await wait(self._news, await self.fire_due())

    async def fire_due(self) -> float:
        """Fire what is due. Returns how many seconds later to look again."""
        found = await self._reading.run(store.due_schedules(limit=MOST_AT_ONCE))
        read_at = time.monotonic()
        random.shuffle(found.due)  # Other workers have read the same ones: begin with another.
        fired_before = self._fired
        coming = [found.upcoming, *[await self._fire(one, found.now) for one in found.due]]
        if len(found.due) == MOST_AT_ONCE and self._fired > fired_before:
            return 0.0  # More may be due. If none could fire, they are locked or in trouble, and can wait.
        next_s = min(((tick - found.now).total_seconds() for tick in coming if tick is not None), default=LOOK_S)
        return max(0.0, min(LOOK_S, next_s - (time.monotonic() - read_at)))

    async def _fire(self, schedule: DueSchedule, now: datetime) -> datetime | None:
        """Fire one schedule, and return when it is due next. A schedule in trouble stops no other."""
        try:
            plan = Plan.of(schedule, now)
            fired = await self._firing.run(store.fire(schedule, plan.ticks, plan.following))
        except ConfigError as error:
            await self._note_trouble(schedule, str(error))
        except psycopg.Error as error:
            if error.sqlstate in _LOCKED:
                if schedule.name not in self._locked:
                    later = "schedule %s fires later, and is tried again every second: %s"
                    log.warning(later, schedule.name, db.summary(error))
                self._locked.add(schedule.name)
            elif error.sqlstate is None or error.sqlstate.startswith(_NOT_THE_ROW):
                raise
            else:
                await self._note_trouble(schedule, db.summary(error))
        else:
            self._locked.discard(schedule.name)
            if fired is not None:
                self._fired += 1
                _log_firing(schedule, plan, fired)
            return plan.following
        return None

    async def _note_trouble(self, schedule: DueSchedule, trouble: str) -> None:
        """Log it once: the row keeps it, and every worker reads the row."""
        if schedule.trouble != trouble and await self._firing.run(store.note_trouble(schedule, trouble)):
            log.error("schedule %s can't fire: %s", schedule.name, trouble)


@dataclass(frozen=True, slots=True)
class Plan:
    """The ticks to make jobs of now, the tick after them, and since when ticks were missed, if any were."""

    ticks: list[datetime]
    following: datetime | None
    missed_since: datetime | None = None

    @classmethod
    def of(cls, schedule: DueSchedule, now: datetime) -> Plan:
        times = timetable.Timetable(schedule)
        first = schedule.next_at or next(times.after(schedule.changed_at), None)
        if first is None or first > now:
            return cls([], first)
        due = times.newest(first, now, most=MOST_TICKS)
        following = next(times.after(now), None)
        if first >= now - LATE:
            return cls(due, following)
        match schedule.missed:
            case "skip":
                due = [tick for tick in due if tick >= now - LATE]
            case "once":
                due = due[-1:]
        return cls(due, following, missed_since=first)


async def check(session: Session) -> None:
    """Withdraw schedules whose last declaring worker is gone, and put those back in force that a worker declares."""
    for name, app, withdrawn in await session.run(store.check_schedules()):
        if withdrawn:
            _log_withdrawn(app, [name])
        else:
            log.warning("the schedule %s of the app %s is in force again: a living worker declares it", name, app)


def _log_withdrawn(app: str, schedules: Sequence[str]) -> None:
    log.warning(
        "schedules no longer fire, because the app %s runs and no longer declares them: %s. They are deleted after a "
        "week. If they belong to another service whose app has the same name, they fire again when that service "
        'starts; tell the two apart with App(service="…")',
        app, ", ".join(schedules),
    )  # fmt: skip


def _log_declaration(declared: Declared, app: str) -> None:
    if declared.withdrawn:
        _log_withdrawn(app, declared.withdrawn)
    for name in declared.taken:
        log.warning(
            "another app has declared a schedule %s too, and this worker takes it over: rename one of them, unless "
            "that app has dropped it", name,
        )  # fmt: skip
    for name in declared.refused:
        log.warning(
            "the schedule %s of this app is not in force, because an operator has made one of that name: rename it, "
            "or run `%s` for the operator's and restart this worker",
            name, program.command(f"schedules remove {name}"),
        )  # fmt: skip


def _log_firing(schedule: DueSchedule, plan: Plan, fired: Fired) -> None:
    if plan.missed_since is not None:
        made = counted(fired.jobs, "job is made", "jobs are made")
        how = "schedule %s missed its firings since %s: %s for all of them (missed=%s)"
        log.warning(how, schedule.name, plan.missed_since.isoformat(), made, schedule.missed)
    if fired.busy is not None:
        log.info("schedule %s skips a firing: job %s of an earlier one is not finished", schedule.name, fired.busy)
    elif fired.jobs:
        log.debug("schedule %s fired: %s", schedule.name, counted(fired.jobs, "job"))
