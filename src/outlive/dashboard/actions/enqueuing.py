"""Enqueue a job of a task, by a form that its signature makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from outlive import store
from outlive.dashboard.actions.questions import Field, Form, Question
from outlive.described import kind_of, signature_of
from outlive.errors import BadArguments
from outlive.operations import By, enqueuing
from outlive.operations.enqueuing import field_of
from outlive.policy import Parameter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

OPTIONS = ("queue", "priority", "delay")
NOTE = "Text is written as it is; lists, objects and the like are JSON."


async def ask(site: Site, form: Form) -> Question:
    task = await _task(site, form)
    fields = [_field(one, form) for one in signature_of(task["signature"])]
    hints = (task["queue"], str(task["priority"]), "none, or such as 5m")
    options = [Field(name, name.capitalize(), form[name], hint) for name, hint in zip(OPTIONS, hints, strict=True)]
    return Question(f"Enqueue a job of {task['name']}?", NOTE, fields=[*fields, *options])


async def enqueue(site: Site, form: Form, by: By) -> None:
    task = await _task(site, form)
    names = [name for name in form.values if name in OPTIONS or name.startswith("arg.")]
    typed = {"priority": str(task["priority"])} | {name: text for name, text in form.typed(names).items() if text}
    await site.writing.do_at_once(enqueuing.enqueue(enqueuing.request(task, typed, by), by))
    site.note(by.entry, f"a job of {task['name']} is enqueued")


def _field(one: Parameter, form: Form) -> Field:
    name, kind = field_of(one), kind_of(one.annotation)[0]
    label = f"{one.name}: {one.annotation}" if one.annotation else one.name
    choices = () if kind != "bool" else ("true", "false") if one.required else ("", "true", "false")
    default = one.default or "its default"
    if kind in enqueuing.TEXTS and default.startswith('"'):
        default = msgspec.json.decode(default)
    return Field(name, label, form[name], "" if one.required else default, choices)


async def _task(site: Site, form: Form) -> Mapping[str, Any]:
    for row in await site.database.run(store.task(form["name"])):
        if row["signature"] is not None:
            return row
    raise BadArguments(f"no worker has described the parameters of {form['name']}: start one of this version")
