"""Finding the user's app by its name, and what a supervisor must know of its tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, cast

from outlive import config as configuration
from outlive import importing
from outlive.child import copies
from outlive.policy import Unset, limits
from outlive.protocol import TaskFacts


class App(Protocol):
    """What a zygote needs of the user's app."""

    @property
    def tasks(self) -> Mapping[str, Any]: ...
    @property
    def sources(self) -> Mapping[str, Any]: ...
    @property
    def database_url(self) -> str | None: ...


def import_app(target: str) -> App:
    """`pkg.module:app`, from the current directory on."""
    with copies.LeftHere(os.getpid()):
        return cast("App", importing.find_app(target))


def facts_of(app: App) -> list[TaskFacts]:
    config = configuration.load()
    return [
        TaskFacts(
            limits=limits(name, task.policy, config),
            timeout_s=config.timeout_s if isinstance(task.policy.timeout_s, Unset) else task.policy.timeout_s,
            stall_s=task.policy.stall_s or config.stall_s,
            memory_bytes=task.policy.memory_bytes or config.memory_bytes,
            recycle_after=task.policy.recycle_after,
            preload=task.policy.preload,
        )
        for name, task in app.tasks.items()
    ]
