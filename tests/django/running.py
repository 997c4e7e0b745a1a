"""Jobs that tests run themselves, under Django's own test runner: `outlive.django.test`.

tests/django/test_project.py runs it.
"""

from __future__ import annotations

import sys
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase

import outlive
import outlive.django
from outlive.celery import shared_task
from outlive.django.models import Job
from outlive.django.test import jobs
from outlive.errors import JobFailed, JobNotFound
from tests.django import natives, tasks
from tests.django.decorator import task

app = outlive.django.app()


@shared_task(max_retries=1, autoretry_for=(ValueError,))
def sign_up(name: str) -> int:
    if not name:
        raise ValueError("no name")
    return int(User.objects.create_user(name).pk)


@app.task(max_attempts=1)
def greet(name: str) -> str:
    user = User.objects.get(username=name)
    tell.enqueue(user.pk)
    return f"hello {user.username}"


@app.task(max_attempts=1)
def break_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("select 1/0")


@app.task(max_attempts=1)
def say_nul() -> str:
    return "\0"


@task
def tell(number: int) -> str:
    return User.objects.get(pk=number).username


class _RunningTests:
    """The same tests in a TestCase, within its transaction, and in a TransactionTestCase."""

    def test_jobs_of_all_kinds_run(self) -> None:
        signed = sign_up.delay("ada")
        greeted, told = greet.enqueue("ada"), tasks.add.enqueue(1)
        assert {one.task.rpartition(".")[2]: one.result for one in jobs.run(raising=True)} == {
            "sign_up": User.objects.get().pk,
            "greet": "hello ada",
            "tell": "ada",
            "add": 2,
        }
        told.refresh()
        assert (signed.get(timeout=5), signed.state) == (User.objects.get().pk, "SUCCESS")
        assert (greeted.result(), greeted.result(5), greeted.status()) == (*["hello ada"] * 2, "succeeded")
        assert (told.status, told.return_value) == ("SUCCESSFUL", 2)
        assert jobs.run() == []

    def test_jobs_of_all_kinds_run_at_once(self) -> None:
        with jobs.eager():
            assert sign_up.delay("ada").get() == User.objects.get().pk
            assert greet.enqueue("ada").result() == "hello ada"
            assert async_to_sync(natives.double.aenqueue)(4).result() == 8
            assert tell.get_result(tell.enqueue(User.objects.get().pk).id).return_value == "ada"
        assert {one.status for one in Job.objects.all()} == {"succeeded"}
        natives.double.enqueue(1)
        assert [one.status for one in Job.objects.filter(status="pending")] == ["pending"]

    @jobs.eager(raising=False)
    def test_a_failure_is_raised_by_get(self) -> None:
        failed = break_transaction.enqueue()
        with self.assertRaisesMessage(JobFailed, "division by zero"):  # type: ignore[attr-defined]
            failed.result()
        assert (User.objects.count(), say_nul.enqueue().status()) == (0, "failed")

    def test_a_failure_is_raised_at_once(self) -> None:
        with jobs.eager(), self.assertRaisesMessage(ValueError, "no name"):  # type: ignore[attr-defined]
            sign_up.delay("")

    def test_retries_and_jobs_of_later_run(self) -> None:
        sign_up.apply_async(("bob",), countdown=3600)
        failed = sign_up.delay("")
        assert [one.attempt for one in jobs.run()] == [1]
        ran = sorted((one.attempt, str(one.outcome)) for one in jobs.run(delayed=True))
        assert (ran, failed.state) == ([(1, "succeeded"), (2, "failed")], "FAILURE")

    def test_a_job_of_an_own_transaction_runs_after_it(self) -> None:
        with jobs.eager():
            with transaction.atomic():
                job = natives.double.enqueue(2)
                assert job.status() == "pending"
            assert [one.result for one in jobs.run()] == [4]
            with transaction.atomic():
                natives.double.enqueue(3)
                transaction.set_rollback(True)
        assert jobs.run() == []

    def test_what_was_enqueued_is_compared(self) -> None:
        jobs.assert_not_enqueued()
        later = sign_up.delay("ada")
        tell.using(priority=50).enqueue(1)
        assert str(jobs.assert_enqueued(sign_up, "ada").id) == later.id
        jobs.assert_enqueued(tell.using(priority=50), 1)
        jobs.assert_not_enqueued(greet)
        assert [len(jobs.enqueued(one)) for one in (None, sign_up, greet)] == [2, 1, 0]
        with self.assertRaisesMessage(AssertionError, "name is 'ada', not 'bob'"):  # type: ignore[attr-defined]
            jobs.assert_enqueued(sign_up, "bob")


class InTestCaseTests(_RunningTests, TestCase):
    def test_a_job_that_is_still_pending_is_not_waited_for(self) -> None:
        job = sign_up.delay("ada")
        with self.assertRaisesMessage(JobNotFound, job.id):
            job.get(timeout=30)

    def test_nothing_is_left_by_other_tests(self) -> None:
        assert (Job.objects.count(), User.objects.count()) == (0, 0)
        assert "pytest" not in sys.modules


class InTransactionTestCaseTests(_RunningTests, TransactionTestCase):
    def test_jobs_in_an_own_transaction_are_not_run(self) -> None:
        with transaction.atomic():
            natives.double.enqueue(2)
            with self.assertRaisesMessage(outlive.OutliveError, "in a transaction of this test"):
                jobs.run()


class WithoutDatabaseTests(SimpleTestCase):
    def test_no_job_runs_without_a_database(self) -> None:
        ran: list[Any] = jobs.run()
        assert ran == []
