"""`outlive_jobs.run(in_processes=True)` in a project of Django: the worker of the test, and the databases it uses."""

import subprocess
import sys

import pytest

from tests.django.test_fixture import run_tests

TASKS = """

from django.conf import settings
from django.db import connections, transaction

from outlive.celery import shared_task


@shared_task
def place(email: str) -> list[str]:
    with transaction.atomic():
        Order.objects.create(email=email)
        where.delay("default")
    return [settings.EMAIL_BACKEND, connections["default"].settings_dict["NAME"]]


@shared_task
def where(alias: str) -> str:
    with connections[alias].cursor() as cursor:
        cursor.execute("select current_database()")
        return cursor.fetchone()[0]
"""
TESTS = """
from contextlib import contextmanager

import django
import pytest

django.setup()

from django.conf import settings
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import utils

import outlive
from outlive.pytest import django_in_worker
from shop.models import Order
from shop.tasks import place, where

OWN = connection.settings_dict["NAME"]


@contextmanager
def environment():
    utils.setup_test_environment()
    yield
    utils.teardown_test_environment()


@pytest.fixture
def database():
    with environment():
        made = utils.setup_databases(verbosity=0, interactive=False, parallel=0)
        yield
        utils.teardown_databases(made, verbosity=0)


def ran(outlive_jobs):
    where.delay("default")
    [one] = outlive_jobs.run(in_processes=True)
    return one


def test_a_job_in_a_process_uses_the_test_database(database, outlive_jobs):
    place.delay("ada@example.org")
    first, second = outlive_jobs.run(in_processes=True)
    name = connection.settings_dict["NAME"]
    assert (first.result, second.result) == (["django.core.mail.backends.locmem.EmailBackend", name], name)
    assert name == f"test_{OWN}"
    assert [one.email for one in Order.objects.all()] == ["ada@example.org"]


def test_a_job_in_a_process_sees_no_transaction_of_the_test(database, outlive_jobs):
    with transaction.atomic():
        assert "the test is in a transaction, of which no worker sees the rows: use trans" in ran(outlive_jobs).error


def test_a_database_that_django_does_not_give_to_the_test_is_refused(database, outlive_jobs):
    def refuse(connection):
        raise RuntimeError("Database access not allowed")  # As pytest-django does without its mark.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseDatabaseWrapper, "ensure_connection", refuse)
        said = ran(outlive_jobs).error
    assert "the database 'default' of Django: the test may not use it itself: Database access not allowed" in said


def test_the_database_of_the_settings_is_refused(outlive_jobs):
    assert "no test of Django runs" in ran(outlive_jobs).error
    with environment():  # As with a fixture that makes no test database.
        assert connection.settings_dict["NAME"] == OWN
        assert "Django has made no test database for it" in ran(outlive_jobs).error


def test_settings_without_a_module_are_refused(outlive_jobs):
    with utils.override_settings(DEBUG=False):
        assert django_in_worker.of_test().settings == "project.settings"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings._wrapped, "SETTINGS_MODULE", None)
        with pytest.raises(outlive.OutliveError, match="loaded yet. settings.configure.. has set Django up in the"):
            ran(outlive_jobs)
"""


@pytest.mark.long
def test_a_worker_of_a_test_never_uses_a_database_of_the_settings(empty_database_url, tmp_path):
    said = run_tests(empty_database_url, tmp_path, TESTS, TASKS)
    assert "5 passed" in said, said


BY_CODE = """
import django
from django.conf import settings
from outlive.pytest.django_in_worker import Django, of_test, set_up

set_up(Django(None, False, False, {}, {}))
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}})
django.setup()
print(of_test().settings)
from django.db import connection
connection.ensure_connection()
"""


def test_a_worker_uses_no_database_of_a_django_that_code_has_set_up():
    ran = subprocess.run([sys.executable, "-c", BY_CODE], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("None\n", 1)
    assert "does not use the database 'default' of Django: settings.configure() has set" in ran.stderr.splitlines()[-1]
