"""The app of the worker that a test starts: the tasks of all apps that the test's process has.

The worker imports this module in place of the user's, so an app that names its database in code is served here too:
its settings come along without that address. JSON in the environment says which modules to import. Django is set up
before that, because modules of tasks import models.
"""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any, Final

import msgspec

from outlive.child.journal import Call, Journal
from outlive.child.steps import Step
from outlive.child.talks import Talk
from outlive.client.app import App
from outlive.pytest import django_in_worker
from outlive.pytest.django_in_worker import Django

VARIABLE: Final = "_OUTLIVE_TEST_APPS"
TARGET: Final = f"{__name__}:app"


class Wanted(msgspec.Struct, frozen=True):
    """The modules that have tasks, and where the apps are: `module:name`. After a step of this name jobs are killed."""

    modules: list[str]
    apps: list[str]
    kill_after: str | None = None
    django: Django | None = None
    """Django as the test's process has it."""


class _Merged:
    """All apps as one, as far as a worker needs it."""

    def __init__(self, apps: list[App]) -> None:
        self.tasks = {name: task for app in apps for name, task in app.tasks.items()}
        self.sources = {name: source for app in apps for name, source in app.sources.items()}
        self.declared_schedules = {name: schedule for app in apps for name, schedule in app.declared_schedules.items()}
        self.process_starts = [one for app in apps for one in app.process_starts]
        self.lifespans = [one for app in apps for one in app.lifespans]
        settings: dict[str, Any] = {key: value for app in apps for key, value in app.settings.items()}
        self.settings = {key: value for key, value in settings.items() if key != "database_url"}


def _imported(wanted: Wanted) -> list[App]:
    if wanted.django is None:
        return _apps(wanted)
    django_in_worker.set_up(wanted.django)
    if wanted.django.settings is None:
        with django_in_worker.without_settings():
            return _apps(wanted)
    apps = _apps(wanted)
    from outlive.django import connecting

    connecting.close_connections()  # Each job is a fork of this process.
    connecting.shrink_pools()
    return apps


def _apps(wanted: Wanted) -> list[App]:
    for module in wanted.modules:
        importlib.import_module(module)
    places = (place.partition(":") for place in wanted.apps)
    return [getattr(importlib.import_module(module), name) for module, _, name in places]


def _kill_after(name: str) -> None:
    """Let a process die as soon as its job has kept this step. The next attempt finds it, and does not keep it."""
    keep = Journal.keep

    def keep_and_die(self: Journal, step: Step[..., Any], call: Call, value: object) -> Talk[object]:
        kept = yield from keep(self, step, call, value)
        if call.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept

    Journal.keep = keep_and_die  # type: ignore[method-assign]


_wanted = msgspec.json.decode(os.environ.get(VARIABLE, '{"modules": [], "apps": []}'), type=Wanted)
app = _Merged(_imported(_wanted))
if _wanted.kill_after is not None:
    _kill_after(_wanted.kill_after)
