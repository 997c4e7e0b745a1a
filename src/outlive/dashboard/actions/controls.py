"""Pause, resume, drain, run, set: what operators do to a queue, a source, a schedule or a worker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlive import store
from outlive.dashboard.actions.questions import Field, Question
from outlive.errors import BadArguments
from outlive.operations import By, schedule_changes
from outlive.operations.controls import CONTROLS, Control, audited, limit_of_source, size_of_worker
from outlive.statement import Statement

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

EMPTY: Mapping[str, Any] = MappingProxyType({})
LIMITS = {
    "rate_limit_per_minute": "Requests per minute",
    "burst": "Requests at once after a pause (burst)",
    "max_concurrency": "Requests under way at once",
    "breaker_failures": "Failures in a row that open the breaker",
    "breaker_pause_s": "Seconds that it stays open",
}
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


@dataclass(frozen=True, slots=True)
class Operate:
    control: Control
    name: str

    async def question(self, site: Site) -> Question:
        return Question(self.control.asked(self.name), self.control.note)

    async def perform(self, site: Site, by: By) -> None:
        await _operate(site, by, self.control, self.name, self.control.make(self.name))


@dataclass(frozen=True, slots=True)
class SetSource:
    """Override the limits that an app declares. The form shows what is set, and beside an empty field what applies."""

    source: str
    typed: Mapping[str, str]

    async def question(self, site: Site) -> Question:
        control, row = CONTROLS["set_source"], await self._row(site)
        fields = [
            Field(key, label, self.typed.get(key, _text(row[f"set_{key}"])), _text(row[key]) or "no limit")
            for key, label in LIMITS.items()
        ]
        return Question(control.asked(self.source), control.note, fields=fields)

    async def perform(self, site: Site, by: By) -> None:
        row = await self._row(site)
        limits = {key: limit_of_source(key, text) for key, text in self.typed.items()}
        changed = {key: limit for key, limit in limits.items() if limit != row[f"set_{key}"]}
        await _set(site, by, "set_source", self.source, changed)

    async def _row(self, site: Site) -> Mapping[str, Any]:
        for row in await site.database.run(store.source_limits(self.source)):
            return row
        raise BadArguments(f"there is no source {self.source}")


@dataclass(frozen=True, slots=True)
class SetWorker:
    """Change the slots and the queues of a worker that runs."""

    worker: str
    typed: Mapping[str, str]

    async def question(self, site: Site) -> Question:
        control, now = CONTROLS["set_worker"], await self._now(site)
        fields = [
            Field("slots", "Slots", self.typed.get("slots", now["slots"])),
            Field("queues", "Queues, with commas", self.typed.get("queues", now["queues"]), "all"),
        ]
        return Question(control.asked(self.worker), control.note, fields=fields)

    async def perform(self, site: Site, by: By) -> None:
        now = await self._now(site)
        changed = {key: text for key, text in self.typed.items() if text != now[key]}
        await _set(site, by, "set_worker", self.worker, size_of_worker(changed.get("slots"), changed.get("queues")))

    async def _now(self, site: Site) -> dict[str, str]:
        for row in await site.database.run(store.list_workers(limit=10_000)):
            if row["name"] == self.worker and row["state"] not in ("dead", "stopped"):
                return {"slots": str(row["slots"]), "queues": ", ".join(row["queues"] or ())}
        raise BadArguments(f"no worker {self.worker} is alive")


@dataclass(frozen=True, slots=True)
class SetSchedule:
    """Change when and how a schedule fires."""

    schedule: str
    typed: Mapping[str, str]

    async def question(self, site: Site) -> Question:
        control, row = CONTROLS["set_schedule"], await self._row(site)
        texts = schedule_changes.texts_of(row) | dict(self.typed)
        fields = [Field(name, label, texts[name], *more) for name, (label, *more) in SCHEDULE.items()]
        app = [("Declared by", row["declared_by"])] if row["declared_by"] else []
        note = control.note if app else "Workers notice this within a second."
        return Question(control.asked(self.schedule), note, [("Task", row["task"]), *app], fields=fields)

    async def perform(self, site: Site, by: By) -> None:
        row = await self._row(site)
        values = schedule_changes.values_of(self.typed)
        schedule_changes.refuse_unless_it_can_fire(self.schedule, row, values)
        changed = {key: value for key, value in values.items() if value != row[key]}
        await _set(site, by, "set_schedule", self.schedule, changed)

    async def _row(self, site: Site) -> Mapping[str, Any]:
        for row in await site.database.run(store.list_schedules(limit=1_000_000)):
            if row["name"] == self.schedule:
                return row
        raise BadArguments(f"there is no schedule {self.schedule}")


async def _set(site: Site, by: By, action: str, name: str, values: Mapping[str, Any]) -> None:
    control = CONTROLS[action]
    if values:
        await _operate(site, by, control, name, control.make(name, values), values)
    else:
        site.note(by.entry, f"{control.noun} {name} is as it was")


async def _operate(
    site: Site, by: By, control: Control, name: str, statement: Statement[Any], values: Mapping[str, Any] = EMPTY
) -> None:
    done = await site.writing.do_at_once(audited(statement, by, control.action, {control.noun: name, **values}))
    if done in (False, []):
        raise BadArguments(f"there is no {control.noun} {name}, or it was {control.done} already")
    site.note(by.entry, control.result(name))


def _text(limit: float | None) -> str:
    return "" if limit is None or limit == math.inf else f"{limit:.12g}"
