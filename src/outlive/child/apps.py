"""The user's app in a zygote or child, and the facts about its tasks that the supervisor needs."""

from __future__ import annotations

import os

from msgspec import UNSET

from outlive import config as configuration
from outlive import importing
from outlive.child import copies
from outlive.errors import AppNotFound, BadArguments
from outlive.importing import App
from outlive.policy import task_row
from outlive.protocol import TaskFacts


def import_app(target: str) -> App:
    """Import `pkg.module:app`. A copy that the module forks exits here."""
    with copies.CopiesExit(os.getpid()):
        return importing.import_app(target)


def make_codecs(app: App) -> None:
    """Make what decodes the arguments of each task, before any fork: otherwise each child would make it.

    Arguments of schedules are checked again. Annotations may name what came later in their module.
    """
    for task in app.tasks.values():
        task.codec.make()
    for schedule in app.schedules.values():
        try:
            app.tasks[schedule.task].codec.unpack(schedule.args)
        except BadArguments as error:
            raise AppNotFound(f"the schedule {schedule.name} of {schedule.task} is refused: {error}") from None


def facts_of(app: App) -> list[TaskFacts]:
    config = configuration.load(app=app.settings)
    return [
        TaskFacts(
            limits=task_row(name, task.policy, config),
            timeout_s=config.timeout_s if task.policy.timeout_s is UNSET else task.policy.timeout_s,
            stall_s=task.policy.stall_s or config.stall_s,
            memory_bytes=task.policy.memory_bytes or config.memory_bytes,
            max_jobs=task.policy.max_jobs,
            preload=task.policy.preload,
        )
        for name, task in app.tasks.items()
    ]
