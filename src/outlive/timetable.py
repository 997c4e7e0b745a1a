"""Ticks: the moments at which a schedule fires, by a cron expression in a time zone or by a fixed interval.

Ticks are in UTC, and each is later than the one before. Where daylight saving shifts the local time, cronsim decides
as Debian's cron does: a time that is skipped fires when the clocks have jumped, and a time that comes twice fires the
first time. Expressions with a star as minute or hour fire by the time that passes, also then.

No job's process imports this module: each fork would pay for cronsim and zoneinfo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from outlive.errors import ConfigError
from outlive.model import DueSchedule, Schedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RESOLUTION = timedelta(microseconds=1)
SHOWN = 5
"""How many of its next firings programs are told of a schedule."""


class Timetable:
    """The ticks of one schedule."""

    def __init__(self, schedule: Schedule | DueSchedule) -> None:
        """ConfigError, which names the schedule: there is no such cron expression or zone."""
        if (schedule.cron is None) == (schedule.every_s is None):
            wanted = "either a cron expression or an interval, and not both"
            raise ConfigError(f"the schedule {schedule.name} needs {wanted}")
        if schedule.cron is not None:
            try:
                CronSim(schedule.cron, EPOCH)
            except CronSimError as error:
                raise ConfigError(
                    f"the schedule {schedule.name} has the cron expression {schedule.cron!r:.100}, which can't be read "
                    f"({error}): write minute, hour, day of month, month and day of week, as in '*/5 8-18 * * MON-FRI'"
                ) from None
        self._cron, self._every, self._zone = schedule.cron, timedelta(seconds=schedule.every_s or 0.0), _zone(schedule)
        self._starts_at = schedule.starts_at and schedule.starts_at.astimezone(UTC)
        self._ends_at = schedule.ends_at and schedule.ends_at.astimezone(UTC)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The ticks after a moment. `starts_at` can be the first one, and `ends_at` the last one."""
        moment = moment.astimezone(UTC)  # Times of one local zone compare by their local time.
        if self._starts_at is not None:
            moment = max(moment, self._starts_at - RESOLUTION)
        for tick in self._by_interval(moment) if self._cron is None else self._by_cron(self._cron, moment):
            if self._ends_at is not None and tick > self._ends_at:
                return
            yield tick

    def _by_interval(self, moment: datetime) -> Iterator[datetime]:
        origin = self._starts_at or EPOCH
        number = (moment - origin) // self._every + 1
        while True:
            yield origin + number * self._every
            number += 1

    def _by_cron(self, cron: str, moment: datetime) -> Iterator[datetime]:
        last = moment
        sim = _Sim(cron, moment.astimezone(self._zone))
        if self._zone is not UTC and not sim.parts[1].startswith("*") and not sim.parts[2].startswith("*"):
            # cronsim follows Debian's rules for five fields only. For six, this makes it: it counts in local time, and
            # corrects what it finds.
            sim.fixup_tz, sim.dt = self._zone, sim.dt.replace(tzinfo=None)
        for local in sim:
            tick = local.astimezone(UTC)
            if tick > last:  # The local time may have been set back since `moment`, and cronsim gives an earlier one.
                last = tick
                yield tick

    def newest(self, first: datetime, now: datetime, *, most: int) -> list[datetime]:
        """The newest ticks from `first` to now, the oldest of them first. They are looked for in ever longer spans
        before now: an outage may have been long, and all ticks since `first` too many to go through."""
        first, now = first.astimezone(UTC), now.astimezone(UTC)
        span = timedelta(minutes=1)
        while True:
            begin = max(first - RESOLUTION, now - span)
            found = list(takewhile(lambda tick: tick <= now, self.after(begin)))
            if len(found) >= most or begin < first:
                return found[-most:]
            span *= 2


class _Sim(CronSim):
    """cronsim looks for the next hour in steps of 3,600 seconds. Where the clocks shift by half an hour, that is half
    past an hour: this goes back to its beginning."""

    def advance_hour(self) -> bool:
        before, zone = self.dt, self.dt.tzinfo
        moved: bool = super().advance_hour()
        if moved and self.dt.minute and zone is not None:
            begin = self.dt.replace(minute=0).astimezone(UTC)  # If the clocks skip it, this is the moment of the jump.
            self.dt = max(begin, before.astimezone(UTC)).astimezone(zone)
        return moved


def _zone(schedule: Schedule | DueSchedule) -> tzinfo:
    if schedule.timezone == "UTC":
        return UTC
    try:
        return ZoneInfo(schedule.timezone)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"the schedule {schedule.name} has the time zone {schedule.timezone!r:.100}, which is not known here: "
            f"write it like 'Europe/Berlin', and where the system has no time zones, install the package tzdata"
        ) from None


def next_firings(row: Mapping[str, Any], now: datetime, most: int) -> list[datetime]:
    """The next firings of a schedule that was read, without jitter, whether it is paused or not."""
    try:
        found = Timetable(schedule_in(row))
    except ConfigError:
        return []
    begin = max(now, row["next_at"] - RESOLUTION) if row["next_at"] else now
    return list(islice(found.after(begin), most))


def schedule_in(row: Mapping[str, Any]) -> Schedule:
    """The schedule that a row of the database describes."""
    fields = {key: row[key] for key in Schedule.__struct_fields__ if key in row and row[key] is not None}
    return Schedule(**{"args": b"{}", **fields})
