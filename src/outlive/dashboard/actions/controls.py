"""Pause, resume, drain, run, set: what operators do to a queue, a source, a schedule or a worker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlive import operations, store
from outlive.client.scheduling import refuse_unless_it_can_fire
from outlive.dashboard.actions.questions import Field, Form, Question
from outlive.errors import BadArguments
from outlive.operations import By, schedule_changes
from outlive.operations.controls import CONTROLS, Control, audited, limit_of_source, size_of_worker

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

LIMITS = {
    "rate_limit_per_minute": "Requests per minute",
    "burst": "Requests at once after a pause (burst)",
    "max_concurrency": "Requests under way at once",
    "breaker_failures": "Failures in a row that open the breaker",
    "breaker_pause_s": "Seconds that it stays open",
}
QUEUES = "Queues, with commas"
SCHEDULE: Mapping[str, tuple[Any, ...]] = {
    "cron": ("Cron expression", "none"),
    "every": ("Or an interval", "none, or such as 10m"),
    "timezone": ("Time zone of the cron expression",),
    "missed": ("Missed firings", "", ("skip", "once", "all")),
    "overlap": ("While the last job is unfinished", "", ("skip", "queue", "cancel")),
    "jitter": ("Delay each firing by a part of",),
    "start": ("No firings before", "2027-01-01T00:00Z"),
    "end": ("No firings after", "2027-12-31T00:00Z"),
    "queue": ("Queue", "that of its task"),
    "priority": ("Priority, 0 to 9", "that of its task"),
}
"""The label, the hint and the choices of each option."""


async def ask(control: Control, site: Site, form: Form) -> Question:
    return Question(control.asked(form["name"]), control.note)


async def operate(
    control: Control, site: Site, form: Form, by: By, values: Mapping[str, Any] = MappingProxyType({})
) -> None:
    name = form["name"]
    statement = control.make(name, values) if values else control.make(name)
    done = await site.writing.do_at_once(audited(statement, by, control.action, {control.noun: name, **values}))
    if done in (False, []):
        raise BadArguments(f"there is no {control.noun} {name}, or it was {control.done} already")
    site.note(by.entry, control.result(name))


async def ask_of_source(site: Site, form: Form) -> Question:
    """The form shows what operators have set, and beside an empty field what applies."""
    control, row = CONTROLS["set_source"], await _source(site, form)
    fields = [
        Field(key, label, form.typed([key]).get(key, _text(row[f"set_{key}"])), _text(row[key]) or "no limit")
        for key, label in LIMITS.items()
    ]
    return Question(control.asked(form["name"]), control.note, fields=fields)


async def set_source(site: Site, form: Form, by: By) -> None:
    row = await _source(site, form)
    limits = {key: limit_of_source(key, text) for key, text in form.typed(LIMITS).items()}
    await _set(site, form, by, {key: limit for key, limit in limits.items() if limit != row[f"set_{key}"]})


async def _source(site: Site, form: Form) -> Mapping[str, Any]:
    for row in await site.database.run(store.source_limits(form["name"])):
        return row
    raise BadArguments(f"there is no source {form['name']}")


async def ask_of_worker(site: Site, form: Form) -> Question:
    control, texts = CONTROLS["set_worker"], await _worker(site, form) | form.typed(("slots", "queues"))
    slots, queues = Field("slots", "Slots", texts["slots"]), Field("queues", QUEUES, texts["queues"], "all")
    return Question(control.asked(form["name"]), control.note, fields=[slots, queues])


async def set_worker(site: Site, form: Form, by: By) -> None:
    now = await _worker(site, form)
    changed = {key: text for key, text in form.typed(("slots", "queues")).items() if text != now[key]}
    await _set(site, form, by, size_of_worker(changed.get("slots"), changed.get("queues")))


async def _worker(site: Site, form: Form) -> dict[str, str]:
    for row in await site.database.run(store.list_workers(limit=10_000)):
        if row["name"] == form["name"] and row["state"] not in ("dead", "stopped"):
            return {"slots": str(row["slots"]), "queues": ", ".join(row["queues"] or ())}
    raise BadArguments(f"no worker {form['name']} is alive")


async def ask_of_schedule(site: Site, form: Form) -> Question:
    control, row = CONTROLS["set_schedule"], await _schedule(site, form)
    texts = schedule_changes.texts_of(row) | form.typed(SCHEDULE)
    fields = [Field(name, label, texts[name], *more) for name, (label, *more) in SCHEDULE.items()]
    app = [("Declared by", row["declared_by"])] if row["declared_by"] else []
    note = control.note if app else "Workers notice this within a second."
    return Question(control.asked(form["name"]), note, [("Task", row["task"]), *app], fields=fields)


async def set_schedule(site: Site, form: Form, by: By) -> None:
    row, values = await _schedule(site, form), schedule_changes.values_of(form.typed(SCHEDULE))
    await operations.arun(refuse_unless_it_can_fire(form["name"], row, values), site.database.run)
    await _set(site, form, by, {key: value for key, value in values.items() if value != row[key]})


async def _schedule(site: Site, form: Form) -> Mapping[str, Any]:
    for row in await site.database.run(store.list_schedules(limit=1_000_000)):
        if row["name"] == form["name"]:
            return row
    raise BadArguments(f"there is no schedule {form['name']}")


async def _set(site: Site, form: Form, by: By, values: Mapping[str, Any]) -> None:
    control = CONTROLS[form["action"]]
    if values:
        await operate(control, site, form, by, values)
    else:
        site.note(by.entry, f"{control.noun} {form['name']} is as it was")


def _text(limit: float | None) -> str:
    return "" if limit is None or limit == math.inf else f"{limit:.12g}"
