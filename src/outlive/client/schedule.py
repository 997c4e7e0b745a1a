"""Schedules as an app declares them: `@app.schedule("*/5 * * * *")` above a task.

Only the form of a cron expression is checked here. The worker that registers it parses it and looks up its time zone,
because the libraries for that would cost every fork of a job's process (ADR 4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, cast, overload

from outlive import wire
from outlive.client.options import moment
from outlive.client.task import DjangoTask, Task
from outlive.errors import BadArguments, ConfigError
from outlive.model import Schedule
from outlive.policy import Checks, parse, parse_priority
from outlive.validation import Duration, choice, identifier, interval, known, optional, refused, seconds

if TYPE_CHECKING:
    from outlive.client.app import App

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
MAX_ARGS_BYTES = 65536
"""The largest arguments of a schedule: after an outage, a thousand of its jobs may be made at once."""
MAX_CRON = 200
MAX_JITTER_S = 86400.0
YEARS = range(2000, 9000)
"""The years that workers and the database can compute with."""

_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_NUMBER = re.compile(r"(?<![/#\d])\d+")
"""A number of a field that is neither a step nor a count of weeks."""
_CRON = re.compile(r"([0-9A-Z*,/#-]+ +){4,5}[0-9A-Z*,/#-]+", re.IGNORECASE)


class ScheduleFields(TypedDict, total=False):
    """What every schedule has, however it is made."""

    every: Duration
    """Fire at this interval, in place of a cron expression: from `start` on, or in step with 1970-01-01 00:00 UTC."""
    timezone: str
    """The zone of the cron expression, such as "Europe/Berlin"; UTC if it is not given."""
    args: Mapping[str, Any] | Sequence[Any] | None
    """The arguments of each job: by name, or by position."""
    missed: Literal["skip", "once", "all"]
    """What becomes of firings more than 10 s late: none of them run, one run for all, or each (at most 1,000)."""
    overlap: Literal["skip", "queue", "cancel"]
    """If the job of the firing before is not finished: make none, make one beside it, or cancel that one first."""
    jitter: Duration
    """Each firing is delayed by a part of this, the same whenever it is computed."""
    start: datetime | None
    """There are no firings before this, with a time zone."""
    end: datetime | None
    """There are no firings after this, with a time zone."""
    queue: str | None
    """The queue of its jobs, in place of the task's."""
    priority: int | None
    """The priority of its jobs, in place of the task's."""


class ScheduleOptions(ScheduleFields, total=False):
    """The options of `@app.schedule`."""

    name: str | None
    """The name of the schedule; that of its task if it is not given. A second schedule of a task needs its own."""


class NewSchedule(ScheduleFields, total=False):
    """The options of `app.add_schedule`."""

    cron: str | None
    """The times of its firings, if `every` is not given."""


class ScheduleChanges(ScheduleFields, total=False):
    """What `app.get_schedule(…).set` changes."""

    cron: str | None
    """Fire at the times of this cron expression, in place of an interval."""
    task: Task[..., Any, Any] | DjangoTask | str
    """The task of its jobs. A schedule that is withdrawn is in force again with it, and belongs to no app."""


class ScheduleDecorator(Protocol):
    """What `@app.schedule(…)` returns. It returns the task, and makes one of a plain function."""

    @overload
    def __call__(self, function: Task[P, C, R], /) -> Task[P, C, R]: ...  # type: ignore[overload-overlap]  # It comes first.
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


def decorator(app: App, cron: str | None, options: Mapping[str, Any]) -> ScheduleDecorator:
    """Check the options, and return what registers the schedule of a task."""
    fields = checked("@app.schedule", cron, options)
    name = fields.pop("name", None)
    args = options.get("args")

    def register(function: Callable[..., Any]) -> Task[..., Any, Any]:
        found = getattr(function, "task", function)  # A shared task of outlive.celery has one.
        task: Task[..., Any, Any] = found if isinstance(found, Task) else app.task(function)
        if app.tasks.get(task.name) is not task:
            raise ConfigError(f"{task.name} is not a task of this app: put @app.schedule above its @app.task")
        own_name = name or task.name
        data = packed(own_name, task, args)
        # A schedule with a name of its own keeps that, whatever its task is called.
        was = () if name else task.was
        given = {"cron": cron and cron.strip(), **fields}
        if given.get("priority") is None:
            given["priority"] = task.policy.priority
        schedule = Schedule(name=own_name, task=task.name, was=was, args=data, **given)
        if app.declared_schedules.setdefault(schedule.name, schedule) != schedule:
            raise ConfigError(f"two schedules are named {schedule.name}: give one of them another name with name=…")
        return cast("Task[..., Any, Any]", function) if task is found else task

    return cast("ScheduleDecorator", register)


def checked(where: str, cron: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the schedule that these options of the decorator `where` describe, all but its arguments."""
    known(where, "option", options, ScheduleOptions.__annotations__)
    fields = parse(options, OPTIONS)
    if (cron is None) == (fields.get("every_s") is None):
        raise ConfigError(f"{where} takes either a cron expression or every=…: give exactly one of them")
    if cron is not None and not (isinstance(cron, str) and len(cron) <= MAX_CRON and _CRON.fullmatch(cron.strip())):
        must_be = "a cron expression: minute, hour, day of month, month and day of week, as in '*/5 * * * *'"
        known_as = f", which is {_WORDS[cron]!r}" if cron in _WORDS else ""
        raise refused("the schedule", cron, must_be + known_as)
    for (field, least, most), text in zip(_FIELDS, (cron or "").split()[-5:], strict=False):
        if not all(least <= int(number) <= most for number in _NUMBER.findall(text)):
            raise refused("the schedule", cron, f"a cron expression, and its {field} from {least} to {most}")
    starts_at, ends_at = fields.get("starts_at"), fields.get("ends_at")
    if starts_at is not None and ends_at is not None and ends_at < starts_at:
        raise ConfigError(f"end is {ends_at}, before start, {starts_at}: the schedule would never fire")
    return fields


def packed(name: str, task: Task[..., Any, Any] | None, args: object) -> bytes:
    """The arguments of each job of the schedule called `name`, as JSON. Those of an unknown task are as they are."""
    if not isinstance(args, Mapping | list | tuple | None):
        raise refused("args", args, "a mapping of arguments by name, or a list of them by position")
    by_position = tuple(args) if isinstance(args, list | tuple) else ()
    by_name = dict(args) if isinstance(args, Mapping) else {}
    try:
        if task is None:
            data = wire.encode(list(by_position) or by_name, "args")
        else:
            data = task.codec.pack(by_position, by_name)
    except (BadArguments, wire.NotJson) as error:
        raise BadArguments(f"the schedule {name} is refused: {error}") from None
    if len(data) > MAX_ARGS_BYTES:
        raise too_large(name, len(data))
    return data


def too_large(name: str, bytes: int) -> ConfigError:
    return ConfigError(
        f"the arguments of the schedule {name} have {bytes:,} bytes, over the limit of "
        f"{MAX_ARGS_BYTES:,}: store them elsewhere and pass a reference"
    )


def _jitter(name: str, value: object) -> float:
    jitter_s = seconds(name, value)
    if jitter_s > MAX_JITTER_S:
        raise refused(name, value, "a duration of at most a day")
    return jitter_s


def _bound(name: str, value: object) -> datetime:
    if moment(name, value).year not in YEARS:
        raise refused(name, value, f"between the years {YEARS.start} and {YEARS.stop}")
    return moment(name, value)


OPTIONS: Checks = {
    "every": ("every_s", optional(interval)),
    "timezone": ("timezone", identifier),
    "name": ("name", optional(identifier)),
    "missed": ("missed", lambda name, value: choice(name, value, "skip", "once", "all")),
    "overlap": ("overlap", lambda name, value: choice(name, value, "skip", "queue", "cancel")),
    "jitter": ("jitter_s", _jitter),
    "start": ("starts_at", optional(_bound)),
    "end": ("ends_at", optional(_bound)),
    "queue": ("queue", optional(identifier)),
    "priority": ("priority", optional(parse_priority)),
}
"""For each option of a schedule, its name in `Schedule` and its check."""
