"""Where shared tasks have their jobs: the app of this module decides it.

In a project of Django with a backend of outlive it is the database of that backend, whatever OUTLIVE_DATABASE_URL
says, and in its tests the test database. Elsewhere the settings say it, as for any app.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from outlive.client import redirection
from outlive.client.app import App
from outlive.client.statement_runner import StatementRunner
from outlive.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from outlive.caller_connections import SyncConnection
    from outlive.client.connections import Connections
    from outlive.config import Config
    from outlive.statement import Statement

T = TypeVar("T")


def _project() -> ModuleType | None:
    """What decides in a project of Django. None: there is no project, or a test of outlive's pytest plugin runs."""
    if redirection.database_url is not None:
        return None
    if "outlive.django.backend" not in sys.modules:
        if redirection.django_tests():
            raise ConfigError(
                "a test of Django does not use the database of your settings, and this project does not name its "
                "own: add outlive.django to INSTALLED_APPS, and a backend of outlive to TASKS (docs/how-to/django.md)"
            )
        return None
    from outlive.django import shared

    return shared


def _of_project() -> App | None:
    project = _project()
    return None if project is None else project.app()


class SharedApp(App):
    def __init__(self) -> None:
        super().__init__()
        self.runner = _Runner(lambda: self.config)

    @property
    def config(self) -> Config:
        return super().config if (app := _of_project()) is None else app.config


class _Runner(StatementRunner):
    @property
    def connections(self) -> Connections:
        app = None if (project := _project()) is None else project.connected()
        return super().connections if app is None else app.connections

    def run_all(self, statements: Sequence[Statement[T]], connection: SyncConnection | None = None) -> list[T]:
        if connection is None and (project := _project()) is not None:
            connection = project.transaction()
        return super().run_all(statements, connection)
