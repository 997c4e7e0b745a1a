"""The jobs in the test database of Django, where `outlive_jobs.run()` runs them too: those of Django's tasks, and of
other tasks that a test enqueues on Django's connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections
from django.utils import timezone

from outlive import db, store
from outlive.client import redirection
from outlive.client.app import App
from outlive.client.statement_runner import StatementRunner
from outlive.client.task import Task as OutliveTask
from outlive.django import registry
from outlive.django.addresses import address
from outlive.django.api import Task
from outlive.django.backend import OutliveBackend, backends
from outlive.django.connecting import expect_access
from outlive.django.home import backend_of
from outlive.django.models import Job
from outlive.errors import OutliveError
from outlive.states import State
from outlive.testing import enqueued
from outlive.testing.enqueued import Enqueued
from outlive.testing.in_transaction import is_of_test, joined
from outlive.testing.inline import Inline, task_rows

Tasks = Mapping[str, OutliveTask[..., Any, Any]]
written: set[str] = set()
"""The databases of Django in which this test has enqueued on connections of its own."""


class DjangoWorkers:
    """A worker for each backend that has jobs of this process. They have connections of their own, except in the
    transaction of a TestCase, which is seen on Django's session only."""

    def __init__(self, others: Callable[[], Tasks], *, every: bool = False) -> None:
        """`others`: all tasks of the test, whose jobs are here if it has enqueued them on Django's connection. `every`:
        the test has no other database, so a backend without tasks of its own has jobs, too."""
        self._others, self._every = others, every
        self._workers: dict[tuple[str, str], tuple[db.Connection, Inline]] = {}

    def all(self) -> Iterator[Inline]:
        for backend, app in _used(every=self._every):
            connection, worker = self._in_test(backend, app) or self._worker(backend, app)
            if connections[backend.database].in_atomic_block and connection.autocommit and _waiting(backend):
                raise OutliveError(enqueued.UNCOMMITTED)
            db.run(connection, store.register_tasks(task_rows(self._tasks(app))))
            yield worker

    def enqueued(self) -> list[Enqueued]:
        """The jobs of these databases. Django's own connection also sees those of a transaction of the test."""
        found = {}
        for backend, app in _used(every=self._every):
            django = connections[backend.database]
            own = django.in_atomic_block
            found[backend.database] = enqueued.read(django.connection if own else self._worker(backend, app)[0])
        return [job for jobs in found.values() for job in jobs]

    def _tasks(self, app: App) -> Tasks:
        return {**self._others(), **app.tasks}

    def _in_test(self, backend: OutliveBackend, app: App) -> tuple[db.Connection, Inline] | None:
        """A worker in the transaction of a TestCase. It is made each time: a savepoint may have taken the last one
        back."""
        django = connections[backend.database]
        connection = joined(django) if is_of_test(django) else None
        return None if connection is None else (connection, Inline(connection, lambda: self._tasks(app)))

    def _worker(self, backend: OutliveBackend, app: App) -> tuple[db.Connection, Inline]:
        key = address(backend.database), backend.alias
        if key not in self._workers:
            connection = db.connect(key[0], db.PINNED)
            self._workers[key] = connection, Inline(connection, lambda: self._tasks(app))
        return self._workers[key]

    def close(self) -> None:
        for connection, _ in self._workers.values():
            connection.close()

    def refuse_processes(self) -> None:
        """A worker of its own would find Django's settings, and with them the database that is not for tests."""
        if any(_waiting(backend) for backend, _ in _used()):
            raise OutliveError(
                "jobs wait in Django's test database, and run(in_processes=True) starts no worker there: "
                "call run() without it, or start `manage.py outlive_worker` with settings that name the test database"
            )

    def make_next_due(self, queues: Sequence[str] | None) -> bool:
        """Let the jobs that are due next be due now: a clock of Django's test database might outlive the test there."""
        return sum(worker.make_next_due(queues) for worker in self.all()) > 0

    def refuse_clock(self) -> None:
        """The clock is that of the plugin's database. A test that moves it waits for jobs that never come."""
        for backend, _ in _used():
            waits = {"status__in": (State.PENDING, State.RETRYABLE), "ready_at__gt": timezone.now()}
            if Job.objects.using(backend.database).filter(**waits).exists():
                raise OutliveError(
                    "a job in Django's test database waits for its time, and the clock of a test does not move "
                    "there: run(delayed=True) runs it and its retries without waiting"
                )


def ours(task: object) -> OutliveTask[..., Any, Any] | None:
    """A task of Django as the one of its backend's app, with those options that `using` has given it; None: it is not
    one of Django. A test without access to Django's database is told so here.
    """
    if not isinstance(task, Task):
        return None
    connections[backend_of(task.backend).database].ensure_connection()
    return registry.task_of_app(task)


def takes(database: str) -> bool:
    """Whether a backend has its jobs in this database, and Django gives it to this test, which writes there then."""
    found = any(_name(one) == database and _is_given(one.database) for one in _of_tests())
    written.update([database] if found else [])
    return found


def runners() -> list[StatementRunner]:
    """Those of the databases in which this test has enqueued."""
    return [registry.app_named(one.alias).runner for one in _of_tests() if _name(one) in written]


def _of_tests() -> list[OutliveBackend]:
    """The backends, if a test of Django runs. Otherwise their databases are not for tests."""
    return [*backends().values()] if redirection.django_tests() else []


def _used(*, every: bool = False) -> Iterator[tuple[OutliveBackend, App]]:
    """The backends that have jobs or tasks of this process, and a database that Django gives this test."""
    found = ((backend, registry.app_of(backend)) for backend in _of_tests() if _is_given(backend.database))
    yield from (one for one in found if every or one[1].tasks or _name(one[0]) in written)


def _name(backend: OutliveBackend) -> str:
    return str(connections[backend.database].settings_dict["NAME"])


def _is_given(database: str) -> bool:
    """A module of tasks is often imported in tests that have no database. The settings may name one that is no test's
    then."""
    try:
        expect_access(database)
    except (RuntimeError, AssertionError):  # As pytest-django and Django refuse it.
        return False
    return True


def _waiting(backend: OutliveBackend) -> bool:
    return bool(Job.objects.using(backend.database).filter(status=State.PENDING).exists())
