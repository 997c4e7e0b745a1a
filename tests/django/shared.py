"""Shared tasks of outlive.celery under Django's own test runner, while OUTLIVE_DATABASE_URL names another database.

tests/django/test_project.py runs it.
"""

from __future__ import annotations

import os
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from outlive.celery import app, shared_task
from outlive.django.api import Task
from outlive.django.models import Job
from outlive.errors import ConfigError, JobNotFound

OURS: dict[str, Any] = {"BACKEND": "outlive.django.backend.OutliveBackend"}
OTHER = {"BACKEND": f"{Task.__module__.partition('.base')[0]}.backends.dummy.DummyBackend"}


@shared_task
def note(number: int) -> None: ...


class RolledBackTests(TestCase):
    def test_a_job_of_one_test_is_seen_by_it(self) -> None:
        assert not Job.objects.exists()
        result = note.delay(1)
        assert (str(Job.objects.get().id), result.state) == (result.id, "PENDING")

    def test_it_can_look_at_its_jobs(self) -> None:
        result = note.delay(7)
        [found] = app.jobs(task=note.name)
        assert app.get_job(result.id).info() == found
        assert (str(found.id), found.args, found.ended_at, app.workers()) == (result.id, {"number": 7}, None, [])
        with self.assertRaisesMessage(JobNotFound, str(result.id)):
            result.get(timeout=30)

    test_a_job_of_another_test_is_gone = test_a_job_of_one_test_is_seen_by_it


class WithoutDatabaseTests(SimpleTestCase):
    def test_a_test_without_a_database_is_refused(self) -> None:
        """There may be no test database: Django makes none if no test of a run needs it."""
        with self.assertRaisesMessage(AssertionError, "are not allowed in SimpleTestCase subclasses"):
            note.delay(1)
        with self.assertRaisesMessage(AssertionError, "are not allowed in SimpleTestCase subclasses"):
            async_to_sync(note.task.aenqueue)(1)


class CommittedTests(TransactionTestCase):
    def test_a_job_is_in_the_test_database(self) -> None:
        result = note.delay(1)
        assert (str(Job.objects.get().id), result.state) == (result.id, "PENDING")
        used = app.connections.within(lambda connection: connection.info.dbname)
        assert used == connections["default"].settings_dict["NAME"] != os.environ["PGDATABASE"]

    def test_a_sync_call_in_async_code_enqueues_beside_the_transaction_of_a_test(self) -> None:
        async def view() -> None:
            note.delay(1)
            await note.task.aenqueue(2)

        with transaction.atomic():
            async_to_sync(view)()
            assert Job.objects.count() == 2
            transaction.set_rollback(True)
        assert Job.objects.count() == 1

    def test_a_backend_that_is_not_the_default_has_them_if_it_is_the_only_one(self) -> None:
        with override_settings(TASKS={"default": OTHER, "jobs": OURS}):
            note.delay(1)
        assert Job.objects.count() == 1

    def test_a_test_without_a_backend_is_refused(self) -> None:
        with override_settings(TASKS={"default": OTHER}), self.assertRaisesMessage(ConfigError, "let one stand beside"):
            note.delay(1)
