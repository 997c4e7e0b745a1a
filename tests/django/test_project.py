"""The backend with Django itself: the project's tests, at the newest versions here and at others in long tests."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import psycopg
import pytest

from outlive import embedded
from outlive.temporary.server import temporary_home
from tests.django.projects import PROJECT, environment, run_tests
from tests.driving.workers import ROOT
from tests.waiting import eventually

SUITE = ("shop", *(f"tests.django.{name}" for name in ("suite", "shared", "native", "running")))
PASSED = re.compile(r"\nRan 78 tests in .*\n\nOK\nDestroying test database for alias 'default'\.\.\.\n$")
NEWEST = "6"
VERSIONS = [("3.11", "5.2.0"), ("3.12", "6.0.0"), ("3.13", NEWEST)]
"""The lowest Django, and those that have the Tasks API themselves."""
MANY = 50
NOT_FOR_US = {
    # These change the list inside DummyBackend, and expect that refresh finds the change.
    "test_refresh_result (tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result)",
    "test_refresh_result_async (tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result_async)",
    # This one takes all apps away, and so outlive's (`available_apps = []`).
    "test_doesnt_wait_until_transaction_commit_by_default "
    "(tasks.test_dummy_backend.DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default)",
    # This one calls refresh, and not arefresh, in an event loop, where Django's connections refuse to work.
    "test_refresh_result (tasks.test_tasks.TaskTestCase.test_refresh_result)",
}

JOBS_TEST = """
from datetime import UTC, datetime

import django
import pytest

django.setup()

from django.conf import settings
from django.db import transaction
from django.test import utils

import outlive
from outlive.django.api import Task, task_finished
from outlive.django.models import Job
from shop.models import Order
from shop.tasks import confirm, task, weigh

API = Task.__module__.partition(".base")[0]


@task
@outlive.django.options(max_attempts=3, backoff=["1h"])
def fail():
    raise ValueError("never")


@pytest.fixture
def database():
    utils.setup_test_environment()
    made = utils.setup_databases(verbosity=0, interactive=False)
    yield
    utils.teardown_databases(made, verbosity=0)
    utils.teardown_test_environment()


def test_an_order_is_confirmed(database, outlive_jobs):
    result = confirm.enqueue(Order.objects.create(email="ada@example.org").pk)
    (ran,) = outlive_jobs.run()
    result.refresh()
    assert (ran.task, ran.result, result.status) == ("shop.tasks.confirm", result.return_value, "SUCCESSFUL")
    with outlive_jobs.eager():
        confirm.enqueue(Order.objects.get().pk)
    assert [confirm.get_result(str(job.id)).status for job in Job.objects.all()] == ["SUCCESSFUL"] * 2
    with transaction.atomic(), pytest.raises(outlive.OutliveError, match="after its block"):
        confirm.enqueue(1)
        outlive_jobs.run()
    block = transaction.atomic()
    block._from_testcase = True  # As the fixture `db` has it.
    with block, outlive_jobs.eager():
        result = confirm.enqueue(Order.objects.create(email="bob@example.org").pk)
        native = weigh.enqueue(Order.objects.last().pk)
        status = confirm.get_result(result.id).status
        assert (status, native.result(), native.status()) == ("SUCCESSFUL", 600, "succeeded")
        transaction.set_rollback(True)
    assert (len(outlive_jobs.enqueued()), Order.objects.count()) == (3, 1)
    with pytest.raises(outlive.OutliveError, match="call run.. without it"):
        outlive_jobs.run(in_processes=True)


def test_a_native_task_runs_in_the_database_of_django(database, outlive_jobs):
    job = weigh.enqueue(Order.objects.create(email="ada@example.org").pk)
    assert str(Job.objects.get().id) == str(job.id)
    assert ([one.result for one in outlive_jobs.run()], job.result(5)) == ([600], 600)


def test_a_task_is_retried_and_one_that_is_due_later_runs(database, outlive_jobs):
    ended = []
    task_finished.connect(lambda task_result, **_: ended.append(str(task_result.status)), weak=False)
    failed, order = fail.enqueue(), Order.objects.create(email="ada@example.org")
    confirm.using(run_after=datetime(2030, 1, 1, tzinfo=UTC)).enqueue(order.pk)
    assert ([one.attempt for one in outlive_jobs.run()], ended) == ([1], [])
    assert [(one.task.rpartition(".")[2], one.attempt) for one in outlive_jobs.run(delayed=True)] == [
        *(("fail", 2), ("fail", 3), ("confirm", 1))
    ]
    failed.refresh()
    assert (failed.status, failed.attempts, ended) == ("FAILED", 3, ["FAILED", "SUCCESSFUL"])
    assert outlive_jobs.run(delayed=True) == []


@pytest.mark.parametrize("kind", ["no backend at all", "immediate"])
def test_tasks_of_a_backend_that_a_test_has_taken_away_are_left_out(kind, database, outlive_jobs):
    immediate = {"BACKEND": f"{API}.backends.immediate.ImmediateBackend"}
    left = {"mail": settings.TASKS["default"]} | ({} if kind == "no backend at all" else {"default": immediate})
    order, grams = Order.objects.create(email="ada@example.org").pk, weigh.enqueue(Order.objects.get().pk)
    with utils.override_settings(TASKS=left):
        confirm.using(backend="mail").enqueue(order)
        assert [one.task for one in outlive_jobs.run()] == ["shop.tasks.confirm"]
        outlive_jobs.advance("1h")
    with utils.override_settings(TASKS={}):
        assert outlive_jobs.run() == []
    assert ([one.result for one in outlive_jobs.run()], grams.result(5)) == ([600], 600)


def test_an_order_is_to_be_confirmed(database, outlive_jobs):
    soon = datetime(2030, 1, 1, tzinfo=UTC)
    outlive_jobs.assert_not_enqueued(confirm)
    with transaction.atomic():  # As in a TestCase.
        first = confirm.using(priority=100, run_after=soon).enqueue(7)
        assert str(outlive_jobs.assert_enqueued(confirm, 7).id) == first.id
        outlive_jobs.assert_enqueued(confirm.using(priority=100, run_after=soon), 7)
        with pytest.raises(AssertionError, match="1 job was enqueued, and none"):
            outlive_jobs.assert_not_enqueued()
    assert [str(job.id) for job in outlive_jobs.enqueued(confirm)] == [first.id]
    with pytest.raises(outlive.OutliveError, match="does not move there: run.delayed=True. runs"):
        outlive_jobs.advance("2h")
    with pytest.raises(AssertionError, match="no such job .*confirm.*(.|\\n)*7.*8.*; priority is 0, not 9"):
        outlive_jobs.assert_enqueued(confirm.using(priority=-100), 8)
"""

SHARED = """

from outlive.celery import shared_task


@shared_task
def look(number: int) -> str:
    return Order.objects.get(pk=number).email
"""
ENQUEUING = """
import outlive
from django.db import connection, transaction
from outlive.django.models import Job
from shop.models import Order
from shop.tasks import confirm, label, look, weigh

with transaction.atomic():
    look.delay_on_commit(Order.objects.create(email="ada@example.org").pk)
    assert not Job.objects.exists()
with transaction.atomic():
    order = Order.objects.create(email="bob@example.org")
    look.task.using(connection=connection).enqueue(order.pk)
    confirm.enqueue(order.pk)
    label.enqueue(outlive.result_of(weigh.enqueue(order.pk)), order.pk)
"""


def test_the_backend_passes_its_tests_under_djangos_runner(empty_database_url):
    said = run_tests(empty_database_url, *SUITE)
    assert PASSED.search(said), said


@pytest.mark.parametrize(("words", "code"), [("migrate --check", 1), ("migrate --plan", 0), ("outlive jobs", 5)])
def test_before_the_schema_is_there_its_command_is_named(words, code, empty_database_url):
    command: list[str | Path] = [sys.executable, PROJECT / "manage.py", *words.split()]
    environ = {**os.environ, **environment(empty_database_url)}
    ran = subprocess.run(command, cwd=PROJECT, env=environ, text=True, capture_output=True, check=False)
    assert (ran.returncode, "no outlive schema yet: run `manage.py migrate" in ran.stderr) == (code, True), ran.stderr


def test_a_command_refuses_arguments_that_a_task_can_not_take(empty_database_url):
    def enqueue(task: str, arguments: str) -> tuple[int, str]:
        command: list[str | Path] = [sys.executable, PROJECT / "manage.py", "outlive", "enqueue", task, arguments]
        environ = {**os.environ, **environment(empty_database_url)}
        ran = subprocess.run(command, cwd=PROJECT, env=environ, text=True, capture_output=True, check=False)
        return ran.returncode, ran.stderr

    code, said = enqueue("shop.tasks.confirm", "[1, 2, 3]")
    refused = "shop.tasks.confirm can't be enqueued: too many positional arguments"
    assert (code, refused in said, "Traceback" in said) == (2, True, False), said
    assert enqueue("shop.tasks.confirm", "[1]")[0] == 5, "it comes as far as the schema, which is not there"


BAD_SCHEDULES = """

@task
@outlive.django.schedule(every="1h", args={"x": 1})
def tidy() -> None: ...


@task
@outlive.django.schedule("30-10 * * * *")
def count() -> None: ...
"""


def test_schedules_that_can_not_work_are_refused_by_check_and_by_a_worker(empty_database_url, tmp_path):
    folder = shutil.copytree(PROJECT, tmp_path / "shop")
    tasks = folder / "shop" / "tasks.py"
    line = tasks.read_text().count("\n") + 3
    tasks.write_text(tasks.read_text() + BAD_SCHEDULES)

    def manage(*words: str) -> tuple[int, str]:
        command: list[str | Path] = [sys.executable, folder / "manage.py", *words]
        environ = {**os.environ, **environment(empty_database_url)}
        ran = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True, check=False)
        return ran.returncode, ran.stderr

    refused = (
        f"shop/tasks.py, line {line}: the schedule shop.tasks.tidy is refused: "
        "shop.tasks.tidy can't be enqueued: got an unexpected keyword argument 'x'"
    )
    code, said = manage("check")
    assert (code, f"(outlive.E008) {refused}\n" in said) == (1, True), said
    assert "the schedule shop.tasks.count has the cron expression '30-10 * * * *', which can't be read" in said
    assert manage("migrate") == (0, "")
    code, said = manage("outlive_worker", "--noreload")
    assert (code, refused in said, "Traceback" in said) == (3, True, False), said


STRAY = """

shop = outlive.App()


@shop.task
def lost() -> None: ...
"""


def test_a_task_that_no_worker_of_the_project_runs_is_found_by_check(empty_database_url, tmp_path):
    folder = shutil.copytree(PROJECT, tmp_path / "shop")
    with (folder / "shop" / "tasks.py").open("a") as code:
        code.write(STRAY)
    command: list[str | Path] = [sys.executable, folder / "manage.py", "check"]
    environ = {**os.environ, **environment(empty_database_url)}
    said = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True, check=True).stderr
    assert "(outlive.W003) shop.tasks.lost is a task of an outlive.App of its own, which no worker of" in said, said
    assert "1 issue" in said, said


def test_an_address_that_is_not_djangos_is_found_by_check(empty_database_url):
    def check(url: str) -> str:
        command: list[str | Path] = [sys.executable, PROJECT / "manage.py", "check"]
        environ = {**os.environ, **environment(empty_database_url), "OUTLIVE_DATABASE_URL": url}
        return subprocess.run(command, env=environ, text=True, capture_output=True, check=True).stderr

    assert check(empty_database_url) == ""
    said = check("postgresql://db.example/other")
    assert "(outlive.W002) OUTLIVE_DATABASE_URL, or outlive.toml, names the database host=db.example" in said, said


@pytest.mark.long
def test_a_worker_in_development_reloads_code_that_changes_and_one_for_a_batch_stops(empty_database_url, tmp_path):
    folder = shutil.copytree(PROJECT, tmp_path / "shop")
    environ = {**os.environ, **environment(empty_database_url), "PYTHONDONTWRITEBYTECODE": "1"}

    def manage(*words: str) -> str:
        command: list[str | Path] = [sys.executable, folder / "manage.py", *words]
        return subprocess.run(command, env=environ, text=True, capture_output=True, check=True).stdout

    def succeeded() -> int:
        return manage("outlive", "jobs", "--state", "succeeded").count("shop.tasks.later")

    manage("migrate")
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        words: list[str | Path] = [sys.executable, folder / "manage.py", "outlive_worker", "--slots", "1"]
        worker = subprocess.Popen(words, env=environ, stdout=output, stderr=output)
    try:
        eventually(lambda: " started" in log.read_text(), within_s=60, what="the worker starts")
        with (folder / "shop" / "tasks.py").open("a") as code:
            code.write("\n\n@task\ndef later() -> str:\n    return 'it is there'\n")
        manage("outlive", "enqueue", "shop.tasks.later", "[]")
        eventually(succeeded, within_s=60, what="the worker has the new task")
    finally:
        worker.terminate()
        assert worker.wait(30) == 0
    manage("outlive", "enqueue", "shop.tasks.later", "[]")
    manage("outlive_worker", "--batch", "--exclude-queues", "mail")  # It returns.
    assert succeeded() == 2


@pytest.mark.long
def test_a_worker_runs_native_and_shared_tasks_beside_those_of_django(empty_database_url, tmp_path):
    folder = shutil.copytree(PROJECT, tmp_path / "shop")
    with (folder / "shop" / "tasks.py").open("a") as code:
        code.write(SHARED)
    environ = {**os.environ, **environment(empty_database_url)}

    def manage(*words: str) -> str:
        command: list[str | Path] = [sys.executable, folder / "manage.py", *words]
        return subprocess.run(command, env=environ, text=True, capture_output=True, check=True).stdout

    manage("migrate")
    manage("shell", "-c", ENQUEUING)
    manage("outlive_worker", "--batch", "--noreload")
    with psycopg.connect(empty_database_url) as connection:
        results = "select result #>> '{}' from outlive.attempts a join outlive.jobs j on j.id = a.job_id"
        looked = connection.execute(f"{results} where j.task = 'shop.tasks.look' order by 1").fetchall()
        confirmed = connection.execute(f"{results} where j.task = 'shop.tasks.confirm'").fetchall()
        labelled = connection.execute(f"{results} where j.task = 'shop.tasks.label'").fetchall()
    assert labelled == [("order 2, 600 g",)]
    assert ([text for (text,) in looked], len(confirmed)) == (["ada@example.org", "bob@example.org"], 1)


@pytest.mark.long
def test_the_project_works_on_an_embedded_server_without_a_postgres_of_ones_own():
    def manage(*words: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [sys.executable, PROJECT / "manage.py", *words]
        return subprocess.run(command, env=environ, text=True, capture_output=True, check=True)

    with temporary_home("shop") as home:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environ |= {"OUTLIVE_HOME": str(home)}
        manage("migrate")
        manage("outlive", "enqueue", "shop.tasks.confirm", "[1]")
        said = manage("outlive_worker", "--batch", "--noreload").stderr
        assert ("Order matching query does not exist" in said, "lost the database" in said) == (True, False), said
        assert "shop.tasks.confirm" in manage("outlive", "jobs", "--state", "retryable").stdout
        assert embedded.release(home, wait_s=60), "it stops with its last process"


@pytest.mark.long
def test_the_fixture_outlive_jobs_runs_the_tasks_of_django_too(empty_database_url, tmp_path):
    (tmp_path / "test_shop.py").write_text(JOBS_TEST)
    ours = {"PYTHONPATH": f"{PROJECT}{os.pathsep}{ROOT / 'src'}", "DJANGO_SETTINGS_MODULE": "project.settings"}
    words: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    environ = {**os.environ, **environment(empty_database_url), **ours, "OUTLIVE_TEST_DATABASE_URL": empty_database_url}
    ran = subprocess.run(words, cwd=tmp_path, env=environ, text=True, capture_output=True, check=False)
    assert "6 passed" in ran.stdout, ran.stdout + ran.stderr


def interpreter(version: str) -> str:
    """A Python of this version: this one, one of pyenv, or one on the path."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = str(installed[-1]) if installed else shutil.which(f"python{version}")
    return found or pytest.skip(f"there is no Python {version} here")


def with_django(python: str, django: str, folder: Path) -> Path:
    """The interpreter of an environment with outlive and this version of Django."""
    uv, environ = [sys.executable, "-m", "uv"], {**os.environ, "UV_SYSTEM_CERTS": "true"}
    subprocess.run([*uv, "venv", "-q", "--python", interpreter(python), folder / "venv"], check=True, env=environ)
    made = folder / "venv" / "bin" / "python"
    wanted = [
        f"{ROOT}[django]",
        "psycopg-pool>=3.2",
        f"django~={NEWEST}.0" if django == NEWEST else f"django=={django}",
    ]
    subprocess.run([*uv, "pip", "install", "-q", "--python", made, *wanted], check=True, env=environ)
    said = subprocess.run([made, "-m", "django", "--version"], text=True, capture_output=True, check=True).stdout
    assert f"{said.strip()}.0.".startswith(f"{django}.")
    return made


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("python", "django"), VERSIONS, ids=lambda version: str(version))
def test_the_backend_passes_its_tests_with_another_django(python, django, empty_database_url, tmp_path):
    said = run_tests(empty_database_url, *SUITE, python=with_django(python, django, tmp_path))
    assert PASSED.search(said), said


@pytest.mark.long
@pytest.mark.timeout(600)
def test_djangos_own_tests_pass_with_this_backend_in_place_of_its_dummy(empty_database_url, tmp_path):
    """They are in its source. They are downloaded, and not kept."""
    python = interpreter("3.13")
    words: list[str | Path] = [
        *("-m", "pip", "download", "-q", "--no-deps", "--no-binary", "django", f"django~={NEWEST}.0", "-d", tmp_path),
    ]
    if subprocess.run([python, *words], capture_output=True, check=False).returncode:
        pytest.skip("the source of Django can't be downloaded here")
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, [one for one in archive if "/tests/tasks/" in one.name], filter="data")
    (folder,) = tmp_path.glob("*/tests")
    stand_in("django.tasks", folder / "tasks")
    made = with_django("3.13", NEWEST, tmp_path)
    said = run_tests(empty_database_url, "tasks.test_dummy_backend", "tasks.test_tasks", python=made, path=folder)
    assert count_and_failures(said) == (MANY, NOT_FOR_US), said


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_tests_of_django_tasks_pass_with_this_backend_in_place_of_its_dummy(empty_database_url, tmp_path):
    """They are in its repository: its packages have none. They are named `tests`, as ours are."""
    made = with_django("3.11", "5.2.0", tmp_path)
    asked = "import importlib.metadata; print(importlib.metadata.version('django-tasks'))"
    version = subprocess.run([made, "-c", asked], text=True, capture_output=True, check=True).stdout.strip()
    address = "https://github.com/RealOrangeOne/django-tasks"
    clone = ["git", "clone", "-q", "--depth", "1", "--branch", version, address, tmp_path / "cloned"]
    if subprocess.run(clone, capture_output=True, check=False).returncode:
        pytest.skip("the repository of django-tasks can't be reached from here")
    suite = (tmp_path / "cloned" / "tests").rename(tmp_path / "their")
    for file in suite.rglob("*.py"):
        file.write_text(
            file.read_text().replace("from tests import", "from their import").replace('"tests.', '"their.')
        )
    stand_in("django_tasks", suite / "tests", settings='ROOT_URLCONF="their.urls", ')
    said = run_tests(
        empty_database_url, "their.tests.test_dummy_backend", "their.tests.test_tasks", python=made, path=tmp_path
    )
    theirs = {name.replace("(tasks.", "(their.tests.") for name in NOT_FOR_US if "TransactionTestCase" not in name}
    assert count_and_failures(said) == (MANY, theirs), said


def stand_in(package: str, folder: Path, settings: str = "") -> None:
    """Put our backend into the place of the package's dummy, in its tests of that one and of tasks."""
    for name in ("test_dummy_backend", "test_tasks"):
        text = (folder / f"{name}.py").read_text().replace("SimpleTestCase", "TestCase")
        text = text.replace(f"{package}.backends.dummy.DummyBackend", "tests.django.standing_in.Backend")
        dummy = f"from {package}.backends.dummy import DummyBackend"
        text = text.replace(dummy, "from tests.django.standing_in import Backend as DummyBackend")
        (folder / f"{name}.py").write_text(text.replace("@override_settings(", f"@override_settings({settings}"))


def count_and_failures(said: str) -> tuple[int, set[str]]:
    """How many tests Django's runner has run, at most MANY, and those that have failed."""
    (count,) = re.findall(r"\nRan (\d+) tests", said)
    return min(int(count), MANY), set(re.findall(r"\n(?:FAIL|ERROR): (.*)\n", said))
