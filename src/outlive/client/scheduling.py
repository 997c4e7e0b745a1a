"""Schedules that are made and changed while workers run: what is checked before, and the statements that do it.

Commands and pages check theirs here, too. A check yields the statements that it needs, and is sent the answers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from outlive import described, store
from outlive.client import looking, schedule
from outlive.client.looking import ScheduleInfo
from outlive.client.schedule import MAX_ARGS_BYTES, OPTIONS, NewSchedule, ScheduleChanges
from outlive.client.task import DjangoTask, Task, expect_task
from outlive.errors import BadArguments, ConfigError
from outlive.statement import Row, Statement
from outlive.validation import identifier, known, optional, text

if TYPE_CHECKING:
    from outlive.client.app import App

T = TypeVar("T")
Steps = Generator[Statement[Any], Any, T]
AnyTask = Task[..., Any, Any] | DjangoTask | str


def adding(app: App, name: str, task: AnyTask, given: NewSchedule) -> Steps[None]:
    """Make a schedule that no app declares. ConfigError: there is one of this name."""
    where, cron = "app.add_schedule", given.get("cron")
    identifier("the name of a schedule", name)
    options = {key: value for key, value in given.items() if key != "cron"}
    values = {"cron": cron and cron.strip(), **schedule.checked(where, cron, options)}
    values["task"], found = _task(app, where, task)
    values["args"] = msgspec.Raw(schedule.packed(name, found, given.get("args")))
    if values.get("priority") is None and found is not None:
        of_django = getattr(found.function, "declared_priority", None)
        values["priority"] = found.policy.priority if of_django is None else of_django()
    yield from refuse_unless_it_can_fire(name, {}, values, found)
    if not (yield store.add_schedule(name, values)):
        raise ConfigError(f"there is a schedule {name} already: app.get_schedule({name!r}).set(…) changes it")


def setting(app: App, name: str, given: ScheduleChanges) -> Steps[None]:
    """Change a schedule. BadArguments: no schedule has this name."""
    known("schedule.set", "option", given, {*OPTIONS, "cron", "args", "task"} - {"name"})
    if not given:
        raise ConfigError("schedule.set needs an option: say what the schedule is to have")
    values = columns(given)
    rows: list[Row] = yield store.schedule_infos([name])
    if not rows:
        raise BadArguments(f"there is no schedule {name}: `outlive schedules` lists the schedules")
    row = asdict(looking.schedule_info(rows[0]))
    task, found = _task(app, "schedule.set", given.get("task", row["task"]))
    if "task" in given:
        values["task"] = task
    if "args" in given:
        values["args"] = msgspec.Raw(schedule.packed(name, found, given["args"]))
    yield from refuse_unless_it_can_fire(name, row, values, found)
    yield store.set_schedule(name, values)


def listed() -> Steps[list[ScheduleInfo]]:
    """All schedules."""
    rows: Sequence[Row] = yield store.schedule_infos()
    return [*map(looking.schedule_info, rows)]


def columns(given: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """The columns that these options set, besides task and arguments. Of cron and every, the other one is unset too.

    Errors name an option with the prefix.
    """
    if given.get("cron") and given.get("every"):
        raise ConfigError(f"{prefix}cron and {prefix}every are both given: give only one of them")
    values = {field: check(prefix + name, given[name]) for name, (field, check) in OPTIONS.items() if name in given}
    if given.keys() & {"cron", "every"}:
        cron = optional(text)(prefix + "cron", given.get("cron"))
        values = {"every_s": None, "cron": (cron or "").strip() or None, **values}
    return values


def refuse_unless_it_can_fire(
    name: str, row: Mapping[str, Any], values: Mapping[str, object], task: Task[..., Any, Any] | None = None
) -> Steps[None]:
    """ConfigError: with these values, the schedule could not be fired. BadArguments: its task would refuse its
    arguments, by its code or as a worker has described it. A task that no worker has described may take any."""
    from outlive import timetable  # Not at the top: job processes would pay for its libraries.

    new: dict[str, Any] = {"args": {}, **row, **values, "name": name}
    timetable.Timetable(timetable.schedule_in(new))
    if not values.keys() & {"task", "args"}:
        return
    args = new["args"]
    data = bytes(args) if isinstance(args, bytes | msgspec.Raw) else msgspec.json.encode(args)
    if len(data) > MAX_ARGS_BYTES:
        raise schedule.too_large(name, len(data))
    try:
        if task is not None:
            given = task.codec.unpack(data)
            if check := getattr(task.function, "check_arguments", None):  # A task of Django.
                check(*given)
        elif (signature := (yield store.signature(new["task"]))) is not None:
            described.expect_fitting(new["task"], described.signature_of(signature), data)
    except BadArguments as error:
        raise BadArguments(f"the schedule {name} is refused: {error}") from None


def _task(app: App, where: str, given: AnyTask) -> tuple[str, Task[..., Any, Any] | None]:
    """The name of a task, and the task, unless this process knows only its name."""
    if isinstance(given, str):
        return identifier("task", given), app.tasks.get(given)
    found: Task[..., Any, Any] = expect_task(f"{where} takes", app._own_task(given))
    if found._options:
        raise ConfigError(f"{where} takes a task without using(…): its own options give the queue and the priority")
    return found.name, found
