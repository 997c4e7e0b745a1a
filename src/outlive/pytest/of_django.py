"""The jobs of Django's tasks. They are in the test database of Django, where `outlive_jobs.run()` runs them too."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections
from django.test import utils

from outlive import db
from outlive.django import registry
from outlive.django.addresses import address
from outlive.django.backend import backends
from outlive.django.models import Job
from outlive.errors import OutliveError
from outlive.pytest.inline import Inline
from outlive.states import State


class DjangoWorkers:
    """A worker for each database that has jobs of this process. They have connections of their own."""

    def __init__(self) -> None:
        self._workers: dict[str, tuple[db.Connection, Inline]] = {}

    def all(self) -> Iterator[Inline]:
        if not hasattr(utils._TestState, "saved_data"):  # No test of Django's: its databases are not for tests.
            return
        for backend in backends().values():
            app = registry.app_of(backend)
            if not app.tasks:
                continue
            waiting = Job.objects.using(backend.database).filter(status=State.PENDING)
            if connections[backend.database].in_atomic_block and waiting.exists():
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
