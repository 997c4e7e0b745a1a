"""Tasks of `outlive.django.app()` under Django's own test runner, while OUTLIVE_DATABASE_URL names another database.

tests/django/test_project.py runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

import outlive
from outlive.celery import shared_task
from outlive.django.api import Task
from outlive.django.models import Job
from outlive.errors import BadArguments, ConfigError, JobNotFound
from tests.django import tasks

IMMEDIATE = {"default": {"BACKEND": f"{Task.__module__.partition('.base')[0]}.backends.immediate.ImmediateBackend"}}

with override_settings(TASKS=IMMEDIATE):  # As in a test that imports a module of tasks first.
    from tests.django import natives


@shared_task
def remember(number: int) -> None: ...


ENQUEUING: list[Callable[[int], Any]] = [
    *(natives.double.enqueue, async_to_sync(natives.double.aenqueue)),
    *(remember.delay, async_to_sync(remember.task.aenqueue)),
    *(tasks.add.enqueue, async_to_sync(tasks.add.aenqueue)),
]
"""Each way in which a project of Django enqueues jobs."""


class RolledBackTests(TestCase):
    def test_all_jobs_of_one_test_are_seen_by_it(self) -> None:
        assert not Job.objects.exists()
        for enqueue in ENQUEUING:
            enqueue(1)
        assert Job.objects.count() == len(ENQUEUING)

    def test_a_test_looks_at_its_job(self) -> None:
        job = natives.double.enqueue(3)
        assert (job.status(), async_to_sync(job.astatus)(), job.info().args) == ("pending", "pending", {"number": 3})
        with self.assertRaisesMessage(JobNotFound, str(job.id)):
            job.result()

    def test_a_schedule_is_made_of_a_task_of_django(self) -> None:
        made = natives.app.add_schedule("sum", tasks.add, every="1h", args=[1])
        async_to_sync(natives.app.aadd_schedule)("mail", tasks.anything, cron="0 6 * * *")
        mail, total = natives.app.schedules()
        assert (total.task, total.every_s, total.args) == ("tests.django.tasks.add", 3600, [1])
        assert (mail.task, mail.priority) == ("tests.django.tasks.anything", 2)
        made.set(task=tasks.anything)
        assert natives.app.schedules()[1].task == "tests.django.tasks.anything"

    def test_a_task_of_django_that_can_not_be_scheduled_is_refused(self) -> None:
        with self.assertRaisesMessage(BadArguments, "the schedule sum is refused: tests.django.tasks.add can't be"):
            natives.app.add_schedule("sum", tasks.add, every="1h")
        with self.assertRaisesMessage(ConfigError, "app.add_schedule takes a task without using(…)"):
            natives.app.add_schedule("mail", tasks.anything.using(priority=0), every="1h")
        with self.assertRaisesMessage(ConfigError, "give its name, 'tests.django.tasks.add', or use the app"):
            natives.stray.add_schedule("sum", tasks.add, every="1h", args=[1])

    def test_all_jobs_of_a_stream_and_a_batch_are_rolled_back_too(self) -> None:
        with natives.app.batch("pages") as batch:
            assert natives.app.enqueue_stream(natives.double.using(batch=batch).job(n) for n in range(3)) == 3
        assert (Job.objects.count(), batch.counts().jobs) == (3, 3)

    test_all_jobs_of_another_test_are_gone = test_all_jobs_of_one_test_are_seen_by_it


class WithoutDatabaseTests(SimpleTestCase):
    def test_a_test_without_a_database_is_refused(self) -> None:
        for enqueue in ENQUEUING[:4]:
            with self.assertRaisesMessage(AssertionError, "are not allowed in SimpleTestCase subclasses"):
                enqueue(1)


class CommittedTests(TransactionTestCase):
    def test_the_jobs_are_in_the_test_database(self) -> None:
        natives.double.enqueue(1)
        assert Job.objects.get().task == "tests.django.natives.double"
        used = natives.app.connections.within(lambda connection: connection.info.dbname)
        assert used == connections["default"].settings_dict["NAME"] != os.environ["PGDATABASE"]

    def test_a_rollback_leaves_no_job_and_outside_of_a_transaction_each_is_committed(self) -> None:
        for enqueue in ENQUEUING:
            with transaction.atomic():
                enqueue(1)
                transaction.set_rollback(True)
            assert not Job.objects.exists()
        for enqueue in ENQUEUING:
            enqueue(1)
        assert Job.objects.count() == len(ENQUEUING)

    async def test_async_code_leaves_no_session_that_keeps_the_database_from_being_dropped(self) -> None:
        job = await natives.double.aenqueue(1)
        assert await job.astatus() == "pending"
        with self.assertRaisesMessage(TimeoutError, "did not finish"):
            await job.aresult(timeout=0.05)

    def test_an_app_with_the_database_of_the_settings_is_refused(self) -> None:
        for enqueue in (natives.lost.enqueue, async_to_sync(natives.lost.aenqueue), outlive.App().jobs):
            with self.assertRaisesMessage(ConfigError, "make the app with outlive.django.app()"):
                enqueue()
        natives.lost.using(connection=connections["default"]).enqueue()
        assert Job.objects.count() == 1

    def test_a_test_that_replaces_the_backend_is_refused(self) -> None:
        with (
            override_settings(TASKS=IMMEDIATE),
            self.assertRaisesMessage(ConfigError, "TASKS['default'] is not a backend of outlive but ImmediateBackend"),
        ):
            natives.double.enqueue(1)
        natives.double.enqueue(1)
