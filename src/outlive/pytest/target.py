"""The app of the worker that a test starts: the tasks of all apps that the test's process has.

The worker imports this module in place of the user's, so an app that names its database in code is served here too:
its settings come along without that address. JSON in the environment says which modules to import.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

import msgspec

from outlive.client.app import App

VARIABLE: Final = "_OUTLIVE_TEST_APPS"
TARGET: Final = f"{__name__}:app"


class Wanted(msgspec.Struct, frozen=True):
    """The modules that have tasks, and where the apps are: `module:name`."""

    modules: list[str]
    apps: list[str]


class _Merged:
    """All apps as one, as far as a worker needs it."""

    def __init__(self, apps: list[App]) -> None:
        self.tasks = {name: task for app in apps for name, task in app.tasks.items()}
        self.sources = {name: source for app in apps for name, source in app.sources.items()}
        self.schedules = {name: schedule for app in apps for name, schedule in app.schedules.items()}
        self.process_starts = [one for app in apps for one in app.process_starts]
        settings: dict[str, Any] = {key: value for app in apps for key, value in app.settings.items()}
        self.settings = {key: value for key, value in settings.items() if key != "database_url"}


def _imported(wanted: Wanted) -> list[App]:
    for module in wanted.modules:
        importlib.import_module(module)
    places = (place.partition(":") for place in wanted.apps)
    return [getattr(importlib.import_module(module), name) for module, _, name in places]


app = _Merged(_imported(msgspec.json.decode(os.environ.get(VARIABLE, '{"modules": [], "apps": []}'), type=Wanted)))
