"""The user's app in a zygote or child, and the facts about its tasks that the supervisor needs."""

from __future__ import annotations

import os

from outlive import config as configuration
from outlive import importing
from outlive.child import copies
from outlive.importing import App
from outlive.policy import Unset, limits
from outlive.protocol import TaskFacts


def import_app(target: str) -> App:
    """Import `pkg.module:app`. A copy that the module forks exits here."""
    with copies.CopiesExit(os.getpid()):
        return importing.import_app(target)


def facts_of(app: App) -> list[TaskFacts]:
    config = configuration.load()
    return [
        TaskFacts(
            limits=limits(name, task.policy, config),
            timeout_s=config.timeout_s if isinstance(task.policy.timeout_s, Unset) else task.policy.timeout_s,
            stall_s=task.policy.stall_s or config.stall_s,
            memory_bytes=task.policy.memory_bytes or config.memory_bytes,
            recycle_after=task.policy.max_jobs,
            preload=task.policy.preload,
        )
        for name, task in app.tasks.items()
    ]
