"""Enqueue a job of a task, by a form that its signature makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from outlive import store
from outlive.dashboard.actions.questions import Field, Question
from outlive.errors import BadArguments
from outlive.operations import By, enqueuing
from outlive.operations.enqueuing import field_of, kind_of
from outlive.policy import Parameter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

OPTIONS = ("queue", "priority", "delay")
NOTE = "Text is written as it is; lists, objects and the like are JSON."


@dataclass(frozen=True, slots=True)
class EnqueueJob:
    task: str
    typed: Mapping[str, str]

    async def question(self, site: Site) -> Question:
        task = await self._task(site)
        fields = [self._field(one) for one in enqueuing.signature_of(task)]
        hints = (task["queue"], str(task["priority"]), "none, or such as 5m")
        options = [
            Field(name, name.capitalize(), self.typed.get(name, ""), hint)
            for name, hint in zip(OPTIONS, hints, strict=True)
        ]
        return Question(f"Enqueue a job of {self.task}?", NOTE, fields=[*fields, *options])

    def _field(self, one: Parameter) -> Field:
        name, kind = field_of(one), kind_of(one.annotation)[0]
        label = f"{one.name}: {one.annotation}" if one.annotation else one.name
        choices = () if kind != "bool" else ("true", "false") if one.required else ("", "true", "false")
        default = one.default or "its default"
        if kind in enqueuing.TEXTS and default.startswith('"'):
            default = msgspec.json.decode(default)
        hint = "" if one.required else default
        return Field(name, label, self.typed.get(name, ""), hint, choices)

    async def perform(self, site: Site, by: By) -> None:
        task = await self._task(site)
        typed = {"priority": str(task["priority"])} | {name: text for name, text in self.typed.items() if text}
        await site.writing.do_at_once(enqueuing.enqueue(enqueuing.request(task, typed, by), by))
        site.note(by.entry, f"a job of {self.task} is enqueued")

    async def _task(self, site: Site) -> Mapping[str, Any]:
        for row in await site.database.run(store.task(self.task)):
            if row["signature"] is not None:
                return row
        raise BadArguments(f"no worker has described the parameters of {self.task}: start one of this version")
