"""The jobs of Django's tasks. They are in the test database of Django, where `outlive_jobs.run()` runs them too."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections
from django.test import utils

from outlive import db
from outlive.client.app import App
from outlive.django import registry
from outlive.django.addresses import address
from outlive.django.backend import OutliveBackend, backends
from outlive.django.models import Job
from outlive.errors import OutliveError
from outlive.pytest.inline import Inline
from outlive.states import State


class DjangoWorkers:
    """A worker for each database that has jobs of this process. They have connections of their own."""

    def __init__(self) -> None:
        self._workers: dict[str, tuple[db.Connection, Inline]] = {}

    def all(self) -> Iterator[Inline]:
        for backend, app in _used():
            if connections[backend.database].in_atomic_block and _waiting(backend):
                raise OutliveError(
                    "jobs of Django's tasks wait in a transaction of this test, which no worker sees: "
                    "use transactional_db or TransactionTestCase, which commit"
                )
            url = address(backend.database)
            if url not in self._workers:
                connection = db.connect(url, db.PINNED)
                self._workers[url] = connection, Inline(connection, lambda app=app: app.tasks)  # type: ignore[misc]
            yield self._workers[url][1]

    def close(self) -> None:
        for connection, _ in self._workers.values():
            connection.close()

    def refuse_processes(self) -> None:
        """A worker of its own would find Django's settings, and with them the database that is not for tests."""
        if any(_waiting(backend) for backend, _ in _used()):
            raise OutliveError(
                "jobs of Django's tasks wait, and run(in_processes=True) starts no worker on Django's test database: "
                "call run() without it, or start `manage.py outlive_worker` with settings that name the test database"
            )


def _used() -> Iterator[tuple[OutliveBackend, App]]:
    """The backends that have tasks of this process."""
    if hasattr(utils._TestState, "saved_data"):  # Otherwise no test of Django's runs: its databases are not for tests.
        found = ((backend, registry.app_of(backend)) for backend in backends().values())
        yield from (one for one in found if one[1].tasks)


def _waiting(backend: OutliveBackend) -> bool:
    return bool(Job.objects.using(backend.database).filter(status=State.PENDING).exists())
