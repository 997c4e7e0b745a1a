"""The database of one backend in TASKS: the one place that decides where an app of Django has its jobs.

It is asked at each call. Test runners rename the database, and tests replace TASKS, after the tasks are imported.
"""

from __future__ import annotations

import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from outlive import config as configuration
from outlive.client import redirection
from outlive.django.addresses import address
from outlive.django.api import BaseTaskBackend, task_backends
from outlive.django.connecting import expect_access
from outlive.errors import ConfigError
from outlive.states import OVER

if TYPE_CHECKING:
    from outlive.client.connections import Connections
    from outlive.config import Config
    from outlive.statement import Statement

T = TypeVar("T")
P = ParamSpec("P")
_APART = frozenset({"ask_source", "count_outcomes"})
"""Statements that would hold a lock which all jobs of a source need, until the transaction ends."""


class HomedBackend(BaseTaskBackend):
    """What is asked of a backend here."""

    database: str
    settings: dict[str, Any]


def backend_of(alias: str) -> HomedBackend:
    """The backend TASKS[alias], which must be one of outlive."""
    backend = task_backends[alias]
    if isinstance(backend, HomedBackend):
        return backend
    wrong = f"TASKS[{alias!r}] is not a backend of outlive but {type(backend).__qualname__}"
    if redirection.django_tests():
        raise ConfigError(f"{wrong}: a test that needs that one lets it stand beside, under another alias")
    raise ImproperlyConfigured(wrong)


class DjangoHome:
    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._lock = threading.Lock()
        self._known: tuple[tuple[str, str], Config] | None = None

    def exists(self) -> bool:
        try:
            backend_of(self.alias)
        except (ImproperlyConfigured, ConfigError):  # Also Django's own error about an alias that TASKS lacks.
            return False
        return True

    @property
    def config(self) -> Config:
        """The settings of the backend with the address of its database, whatever OUTLIVE_DATABASE_URL says."""
        backend = backend_of(self.alias)
        named = backend.database, str(connections[backend.database].settings_dict["NAME"])
        with self._lock:
            if self._known is None or self._known[0] != named:
                self.close()
                settings = self.settings(backend)
                url = settings["database_url"]
                self._known = named, configuration.load(app=settings, flags={"database_url": url})
            return self._known[1]

    @staticmethod
    def settings(backend: HomedBackend) -> dict[str, Any]:
        """What the backend gives in code."""
        return configuration.in_code({**backend.settings, "database_url": address(backend.database)})

    def connections(self) -> Connections:
        if redirection.django_tests():
            expect_access(backend_of(self.alias).database)
        return self._connections

    @cached_property
    def _connections(self) -> Connections:
        from outlive.client.connections import Connections  # Not at the top: the processes of jobs don't need it.

        return Connections(lambda: self.config)

    def transaction(self) -> BaseDatabaseWrapper | None:
        if _get_running_loop() is not None:  # Django's connections refuse async code.
            return None
        connection = connections[backend_of(self.alias).database]
        manual = connection.connection is not None and not connection.autocommit
        return connection if connection.in_atomic_block or manual else None

    def found_in_test(self, one: Statement[T]) -> T | None:
        if one.name != "outcomes" or not redirection.django_tests() or (connection := self.transaction()) is None:
            return None
        from outlive import db
        from outlive.testing import in_transaction  # Not at the top: only tests need it.

        ours = in_transaction.joined(connection) if in_transaction.is_of_test(connection) else None
        found: Any = {} if ours is None else db.run(ours, one)
        ended = all(outcome.state in OVER for outcome in found.values())
        return found if ended else None  # Nothing else runs the others: they are not waited for.

    def joins(self, statement: Statement[object]) -> bool:
        return redirection.django_tests() or statement.name not in _APART

    def in_thread(self, call: Callable[P, T]) -> Callable[P, Coroutine[object, object, T]]:
        return sync_to_async(call, thread_sensitive=True)

    def forget(self) -> None:
        """TASKS or DATABASES have changed."""
        self.close()
        self._known = None

    def close(self) -> None:
        """Close all connections, before Django drops or renames the database."""
        if own := self.__dict__.get("_connections"):
            own.close()
