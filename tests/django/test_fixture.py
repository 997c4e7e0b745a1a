"""The fixture `outlive_jobs` in a project of Django with shared tasks of outlive.celery."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.django.projects import PROJECT, environment
from tests.driving.workers import ROOT

TASKS = """

from outlive.celery import shared_task


@shared_task
def look(number: int) -> str:
    return Order.objects.get(pk=number).email


@shared_task(max_retries=1, autoretry_for=(ValueError,))
def fail() -> None:
    look.delay(1)
    raise ValueError("never")
"""
TESTS = """
from uuid import UUID

import django
import psycopg
import pytest

django.setup()

from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import utils

import outlive.django
from outlive.celery import AsyncResult
from shop.models import Order
from shop.tasks import fail, look

LATER = look.task.using(connection=connection)


@pytest.fixture(scope="session")
def database():
    utils.setup_test_environment()
    made = utils.setup_databases(verbosity=0, interactive=False)
    yield
    utils.teardown_databases(made, verbosity=0)
    utils.teardown_test_environment()


def test_jobs_on_djangos_connection_are_found_and_run(database, outlive_jobs):
    with transaction.atomic():
        order = Order.objects.create(email="ada@example.org").pk
        LATER.enqueue(order)
        outlive_jobs.assert_enqueued(look.task, order)
        with pytest.raises(AssertionError, match="1 job was enqueued, and none"):
            outlive_jobs.assert_not_enqueued(look.task)
        with pytest.raises(outlive.OutliveError, match="in a transaction of this test"):
            outlive_jobs.run()
    assert [one.result for one in outlive_jobs.run()] == ["ada@example.org"]
    fail.task.using(connection=connection).enqueue()
    ran = outlive_jobs.run(delayed=True)
    assert [(one.task.rpartition(".")[2], one.outcome) for one in ran] == [
        *(("fail", "failed"), ("look", "succeeded"), ("fail", "failed"), ("look", "succeeded"))
    ]
    with outlive_jobs.eager():
        LATER.enqueue(order)
    assert len(outlive_jobs.enqueued(look.task)) == 4


def test_a_handle_finds_the_job_on_djangos_connection(database, outlive_jobs):
    with transaction.atomic():
        order = Order.objects.create(email="ada@example.org").pk
        job = LATER.enqueue(order)
        assert job.status() == "pending"
    with pytest.raises(TimeoutError, match="did not finish within 0 s"):
        job.result(0)
    outlive_jobs.run()
    assert (job.result(), job.result(5), job.info().state) == (*["ada@example.org"] * 2, "succeeded")
    assert (async_to_sync(job.aresult)(), async_to_sync(job.aresult)(5)) == ("ada@example.org", "ada@example.org")
    assert outlive_jobs.assert_enqueued(look.task, order).result(5) == AsyncResult(str(job.id)).get() == job.result()
    failed = fail.task.using(connection=connection).enqueue()
    outlive_jobs.run()
    assert (failed.retry(), failed.cancel(), failed.status()) == (True, True, "cancelled")
    with pytest.raises(outlive.JobNotFound):
        look.task.app.get_job(UUID(int=1)).result(5)


def test_each_test_begins_without_the_jobs_of_others(database, outlive_jobs):
    assert outlive_jobs.enqueued() == []
    look.delay(1)
    assert len(outlive_jobs.enqueued()) == 1


def test_a_database_that_django_does_not_give_to_the_test_is_refused(database, outlive_jobs):
    def refuse(connection):
        raise RuntimeError("Database access not allowed")  # As pytest-django does without its mark.

    with psycopg.connect(**connection.get_connection_params()) as own, pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseDatabaseWrapper, "ensure_connection", refuse)
        with pytest.raises(outlive.WrongConnection, match="leads to the database test_"):
            look.task.using(connection=own).enqueue(1)


def test_a_database_of_django_without_a_backend_is_refused(database, outlive_jobs):
    with utils.override_settings(TASKS={}), pytest.raises(outlive.WrongConnection, match="leads to .* test_.* TASKS"):
        LATER.enqueue(1)
    assert outlive_jobs.enqueued() == []


def weigh(number):
    return 40 * len(Order.objects.get(pk=number).email)


def test_native_tasks_run_beside_them(database, outlive_jobs):
    native = outlive.django.app().task(weigh)  # Not above: the other tests are those of a project without one.
    with transaction.atomic():
        order = Order.objects.create(email="bob@example.org").pk
        LATER.enqueue(order)
        native.enqueue(order)
    assert {one.result for one in outlive_jobs.run()} == {"bob@example.org", 600}
"""


def run_tests(url: str, folder: Path, tests: str, tasks: str = TASKS) -> str:
    """Run tests under pytest in a copy of the project that has shared tasks instead of native ones."""
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    code = folder / "shop" / "tasks.py"
    code.write_text(code.read_text().partition("\n\napp = ")[0] + tasks)
    (folder / "test_shop.py").write_text(tests)
    ours = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}", "DJANGO_SETTINGS_MODULE": "project.settings"}
    words: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    environ = {**os.environ, **environment(url), **ours, "OUTLIVE_TEST_DATABASE_URL": url}
    ran = subprocess.run(words, cwd=folder, env=environ, text=True, capture_output=True, check=False)
    return ran.stdout + ran.stderr


@pytest.mark.long
def test_outlive_jobs_runs_what_shared_tasks_enqueue_on_djangos_connection(empty_database_url, tmp_path):
    said = run_tests(empty_database_url, tmp_path, TESTS)
    assert "6 passed" in said, said
