"""A schedule that an operator makes: the form, and what is wrong with its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlive import operations, store
from outlive.client.scheduling import refuse_unless_it_can_fire
from outlive.dashboard.actions.controls import SCHEDULE
from outlive.dashboard.actions.questions import Field, Form, Question
from outlive.dashboard.answers import MOST_TASKS
from outlive.errors import BadArguments, ConfigError
from outlive.operations import By, schedule_changes
from outlive.operations.controls import audited
from outlive.operations.enqueuing import BadFields
from outlive.validation import identifier

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

NOTE = "Workers fire it from its next time on. It belongs to no app, so deploys leave it alone."
DEFAULTS = {"timezone": "UTC", "missed": "once", "overlap": "queue"}


async def ask(site: Site, form: Form) -> Question:
    """The form. Its tasks are those that workers have described, so that arguments are checked here."""
    tasks = [row["name"] for row in await site.database.run(store.list_tasks(limit=MOST_TASKS)) if row["described"]]
    texts = DEFAULTS | form.typed(["name", "task", "args", *SCHEDULE])
    own = [Field("name", "Name", texts.get("name", "")), Field("task", "Task", texts.get("task", ""), "", ("", *tasks))]
    args = Field("args", "Arguments, as a JSON object or array", texts.get("args", ""), "none")
    times = [Field(name, label, texts.get(name, ""), *more) for name, (label, *more) in SCHEDULE.items()]
    return Question("Make a schedule?", NOTE, fields=[*own, args, *times])


async def make(site: Site, form: Form, by: By) -> None:
    name, values = form["name"], await _values(site, form)
    try:
        await operations.arun(refuse_unless_it_can_fire(name, {}, values), site.database.run)
    except BadArguments as error:
        raise BadFields({"args": str(error)}) from None
    what = {"schedule": name, **values}
    if not await site.writing.do_at_once(audited(store.add_schedule(name, values), by, "add schedule", what)):
        raise BadFields({"name": f"there is a schedule {name} already: choose another name"})
    site.note(by.entry, f"schedule {name} is made")


async def _values(site: Site, form: Form) -> dict[str, Any]:
    """The columns that the form sets. An empty field stands for the default. BadFields: some are wrong."""
    values: dict[str, Any] = {"task": form["task"]}
    wrong: dict[str, str] = {}
    typed = {option: text for option, text in form.typed(SCHEDULE).items() if text}
    for option, text in typed.items():
        try:
            values |= schedule_changes.values_of({option: text})
        except ConfigError as error:
            wrong[option] = str(error)
    if len(typed.keys() & {"cron", "every"}) != 1:
        wrong["cron"] = "give either a cron expression or an interval"
    try:
        identifier("the name of a schedule", form["name"])
    except ConfigError as error:
        wrong["name"] = str(error)
    tasks = await site.database.run(store.task(form["task"]))
    if not tasks or tasks[0]["signature"] is None:
        wrong["task"] = f"no worker has described a task {form['task']}" if form["task"] else "choose a task"
    elif "priority" not in values:
        values["priority"] = tasks[0]["priority"]
    if form["args"]:
        try:
            msgspec.json.decode(form["args"], type=dict[str, Any] | list[Any])
            values["args"] = msgspec.Raw(form["args"].encode())
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            wrong["args"] = "this is not a JSON object or array"
    if wrong:
        raise BadFields(wrong)
    return values
