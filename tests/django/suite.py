"""The backend under Django's own test runner, with its TestCase and TransactionTestCase: `manage.py test`.

tests/django/test_project.py runs it, with each version of Django.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import django
import psycopg
from asgiref.sync import async_to_sync
from django.contrib.admin.utils import display_for_value
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command, load_command_class
from django.db import connection, connections, transaction
from django.db.utils import load_backend
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from psycopg.conninfo import conninfo_to_dict

import outlive.django
from outlive.django import apps
from outlive.django.addresses import address
from outlive.django.api import TaskResult, TaskResultDoesNotExist, task_backends, task_enqueued
from outlive.django.backend import OutliveBackend
from outlive.django.checks import check_without_django_tasks
from outlive.django.management import handover, reloading
from outlive.django.management.commands import outlive_worker
from outlive.django.models import Job
from outlive.django.priorities import django_priority, outlive_priority
from outlive.errors import ConfigError, SchemaMismatch
from outlive.humanize import short_id
from outlive.model import JobRequest
from outlive.operations import By, enqueuing
from outlive.operations.enqueuing import BadFields
from tests.django import tasks
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
MANAGE = ROOT / "examples" / "shop_django" / "manage.py"
E = TypeVar("E", bound=BaseException)


def raised(kind: type[E], call: Callable[[], object]) -> E:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def dumped() -> Any:
    out = io.StringIO()
    call_command("dumpdata", "outlive", "shop", stdout=out)
    return json.loads(out.getvalue())


class EnqueuingTests(TestCase):
    def test_a_result_is_there_in_the_transaction_of_its_job(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        enqueued = tasks.anything.using(priority=-30, run_after=later).enqueue(1, (2, None), key={"a": [1.5]})
        result = tasks.anything.get_result(enqueued.id)
        assert (
            (result.args, result.kwargs) == ([1, [2, None]], {"key": {"a": [1.5]}}) == (enqueued.args, enqueued.kwargs)
        )
        assert (result.status, result.is_finished, result.attempts, result.errors) == ("READY", False, 0, [])
        assert (result.task.queue_name, result.task.run_after, result.backend) == ("mail", later, "default")
        assert outlive_priority(result.task.priority) == outlive_priority(-30)
        assert isinstance(enqueued.enqueued_at, datetime)
        assert result.enqueued_at == enqueued.enqueued_at
        assert (result.started_at, result.finished_at, result.worker_ids) == (None, None, [])
        with self.assertNumQueries(1):
            result.refresh()
        job = Job.objects.get(id=enqueued.id)
        assert (job.task, job.queue, job.ready_at) == ("tests.django.tasks.anything", "mail", later)

    def test_priorities_keep_their_order(self) -> None:
        ranks = [outlive_priority(one) for one in range(-100, 101)]
        assert ranks == sorted(ranks, reverse=True)
        assert (ranks[0], ranks[100], ranks[200]) == (9, 5, 0)
        assert [outlive_priority(django_priority(rank)) for rank in range(10)] == list(range(10))
        assert tasks.anything.get_result(tasks.anything.enqueue().id).task.priority == 50

    def test_a_rollback_leaves_no_job(self) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            transaction.set_rollback(True)
        raised(TaskResultDoesNotExist, lambda: tasks.add.get_result(result.id))

    def test_arguments_that_can_not_work_are_refused(self) -> None:
        assert "missing a required argument: 'a'" in str(raised(TypeError, tasks.add.enqueue))
        assert "argument args[0] is not JSON" in str(raised(TypeError, lambda: tasks.add.enqueue({1, 2})))
        said = str(raised(TypeError, lambda: tasks.anything.enqueue(key=User(username="ada"))))
        assert said.startswith("tests.django.tasks.anything can't be enqueued: argument key is not JSON")
        assert said.endswith("pass its primary key")
        said = str(
            raised(TypeError, lambda: tasks.add.enqueue(outlive.result_of(outlive.django.app().get_job(UUID(int=1)))))
        )
        assert "(the result of another job): only tasks of outlive.django.app() take that" in said
        raised(TypeError, lambda: tasks.second_try.enqueue(1))
        assert not Job.objects.exists()

    def test_a_result_that_is_not_there_is_said_to_be_missing(self) -> None:
        backend = task_backends["default"]
        raised(TaskResultDoesNotExist, lambda: backend.get_result("no id"))
        raised(TaskResultDoesNotExist, lambda: backend.get_result("01a1e4ff-f778-715d-bcba-6f089911de6e"))
        with connection.cursor() as cursor:
            cursor.execute("select outlive.enqueue('os.getpid', '{}')")
            (other,) = cursor.fetchone()
        raised(TaskResultDoesNotExist, lambda: backend.get_result(str(other)))

    def test_async_code_enqueues_and_reads(self) -> None:
        async def order() -> TaskResult:
            result = await tasks.add.aenqueue(1, b=2)
            await result.arefresh()
            return await tasks.add.aget_result(result.id)

        assert async_to_sync(order)().kwargs == {"b": 2}

    def test_the_signal_of_an_enqueue_is_sent(self) -> None:
        seen: list[str] = []

        def receive(task_result: TaskResult, **_: Any) -> None:
            seen.append(task_result.id)

        task_enqueued.connect(receive)
        result = tasks.add.enqueue(1)
        task_enqueued.disconnect(receive)
        assert seen == [result.id]

    def test_a_database_without_the_schema_is_named_with_the_command_that_brings_it(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("drop schema outlive cascade")
        error = raised(SchemaMismatch, lambda: tasks.add.enqueue(1))
        assert "run `manage.py migrate --database default`" in str(error)

    def test_options_that_are_unknown_are_refused(self) -> None:
        assert "max_attempts" in str(raised(ConfigError, lambda: outlive.django.options(max_attempt=3)))  # type: ignore[call-arg]
        assert "@task(queue_name=…)" in str(raised(ConfigError, lambda: outlive.django.options(queue="mail")))
        said = str(raised(ConfigError, lambda: outlive.django.options(name="send")))
        assert said.startswith("the name of a task of Django is the path of its function: leave name out")
        said = str(raised(ConfigError, lambda: outlive.django.options(dedupe_key=5)))  # type: ignore[call-arg]
        assert "declare the task with @app.task of outlive.django.app(), and write task.using(dedupe_key=…)" in said

    def test_options_in_the_wrong_place_are_refused(self) -> None:
        swapped = raised(TypeError, lambda: outlive.django.options(max_attempts=3)(tasks.add))
        assert str(swapped) == "put @outlive.django.options(…) below @task: it takes the function, not a Task"
        bare = raised(TypeError, lambda: outlive.django.options(tasks.refuse.func))
        assert str(bare) == "write @outlive.django.options(…), with what it sets, below @task"

    def test_schedules_that_can_not_work_are_refused(self) -> None:
        for given, said in (
            (("@daily",), "the schedule is '@daily': it must be a cron expression"),
            ((), "@outlive.django.schedule takes either a cron expression or every=…"),
        ):
            assert said in str(raised(ConfigError, lambda: outlive.django.schedule(*given)))  # noqa: B023
        refused = raised(ConfigError, lambda: outlive.django.schedule("0 3 * * *", queue="mail"))
        assert str(refused) == "queue is not an option of @outlive.django.schedule: @task sets it"
        swapped = raised(TypeError, lambda: outlive.django.schedule("0 3 * * *")(tasks.add))
        assert str(swapped) == "put @outlive.django.schedule(…) below @task: it takes the function, not a Task"


class SettingsTests(TestCase):
    def test_the_checks_say_what_is_wrong(self) -> None:
        assert list(task_backends["default"].check()) == []
        backend = {"BACKEND": "outlive.django.backend.OutliveBackend"}
        options = {"database": "missing", "max_attempt": 3, "modules": ["shop.tasks", "shop.job", "job.tasks"]}
        with override_settings(TASKS={"odd": {**backend, "OPTIONS": options}}):
            wrong = [f"{one.id} {one.msg}" for one in task_backends["odd"].check()]
        refused = "The OPTIONS of TASKS['odd'] are refused:"
        assert wrong == [
            "outlive.E002 TASKS['odd'] names the database 'missing', which DATABASES does not have.",
            f"outlive.E004 {refused} OPTIONS has the unknown setting max_attempt; did you mean max_attempts?",
            f"outlive.E005 {refused} modules has 'shop.job', and there is no such module.",
            f"outlive.E005 {refused} modules has 'job.tasks', and there is no such module.",
        ]
        for given, said in (
            ({"modules": "shop.tasks"}, "modules is 'shop.tasks': it must be a list of modules' names."),
            ({"dashbord_url": "x"}, "OPTIONS has the unknown setting dashbord_url; did you mean dashboard_url?"),
            ({"database_url": "x"}, "DATABASES has the address; set database to the alias there, not database_url"),
        ):
            with override_settings(TASKS={"odd": {**backend, "OPTIONS": given}}):
                assert [one.msg for one in task_backends["odd"].check()] == [f"{refused} {said}"]

    def test_apps_that_are_not_installed_are_named(self) -> None:
        assert checks.run_checks() == []
        with override_settings(INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"]):
            with self.assertWarnsMessage(UserWarning, "TASKS['default'] needs 'outlive.django' in INSTALLED_APPS"):
                assert [one.id for one in OutliveBackend("default", {}).check()] == ["outlive.E001"]
            assert "manage.py migrate" in str(raised(ImproperlyConfigured, lambda: tasks.add.enqueue(1)))
            found = [one.id for one in check_without_django_tasks()]
        assert found == (["outlive.E006", "outlive.E001"] if django.VERSION < (6, 0) else [])
        assert check_without_django_tasks in checks.registry.registry.get_checks()

    def test_a_database_that_is_not_postgres_is_never_looked_for_elsewhere(self) -> None:
        with self.other_database({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}):
            error = raised(ConfigError, lambda: address("odd"))
        assert str(error).startswith("the database 'odd' in DATABASES is not PostgreSQL: set OPTIONS['database']")

    def test_a_command_does_not_replace_the_process_of_its_caller(self) -> None:
        for name, word in (("outlive_worker", "--batch"), ("outlive", "jobs")):
            error = raised(CommandError, lambda name=name, word=word: call_command(name, word))  # type: ignore[misc]
            assert str(error).startswith(f"{name} replaces its process, so call_command can't run it: start `manage.py")

    def test_a_worker_without_the_schema_names_the_command_that_brings_it(self) -> None:
        ours = {"BACKEND": "outlive.django.backend.OutliveBackend", "OPTIONS": {"database": "odd"}}
        with self.other_database({"NAME": "postgres"}), override_settings(TASKS={"default": ours}):
            error = raised(CommandError, lambda: call_command("outlive_worker"))
            (missing,) = checks.run_checks(databases=["default", "odd"])
        assert (missing.id, missing.msg) == ("outlive.W001", str(error))
        assert checks.run_checks(databases=["default"]) == []
        assert str(error).endswith("no outlive schema yet: run `manage.py migrate --database odd`")
        assert error.returncode == 5

    @contextmanager
    def other_database(self, given: dict[str, Any]) -> Iterator[None]:
        """A database with the alias `odd`, until the end of the block."""
        settings = {**connection.settings_dict, **given}
        connections.settings["odd"] = settings
        connections["odd"] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "odd")
        try:
            yield
        finally:
            connections["odd"].close()
            del connections["odd"], connections.settings["odd"]

    def test_a_backend_that_can_not_be_imported_is_no_hindrance(self) -> None:
        ours = {"BACKEND": "outlive.django.backend.OutliveBackend"}
        with override_settings(TASKS={"default": ours, "gone": {"BACKEND": "gone.Backend"}}):
            assert apps.used_databases() == {"default"}

    def test_the_schema_comes_only_into_databases_that_a_backend_names(self) -> None:
        assert apps.used_databases() == {"default"}
        apps._bring_schema(using="unnamed", verbosity=1)  # It would fail: no database has this alias.

    def test_the_address_of_a_database_has_all_that_its_settings_say(self) -> None:
        role = connection.get_connection_params().get("user") or os.environ["PGUSER"]
        options = {"assume_role": role, "application_name": "the shop", "server_side_binding": True}
        with self.other_database({"PASSWORD": "it's a \\ secret", "OPTIONS": options}):
            found = address("odd")
        assert conninfo_to_dict(found)["password"] == "it's a \\ secret"
        with psycopg.connect(found) as session:
            assert session.execute(
                "select current_setting('role'), current_setting('application_name')"
            ).fetchone() == (role, "the shop")

    def test_a_role_without_the_right_to_bring_the_schema_is_told_which(self) -> None:
        ours = {"BACKEND": "outlive.django.backend.OutliveBackend", "OPTIONS": {"database": "odd"}}
        odd = {"NAME": "postgres", "OPTIONS": {"assume_role": "pg_monitor"}}
        with self.other_database(odd), override_settings(TASKS={"default": ours}):
            error = raised(CommandError, lambda: apps._bring_schema(using="odd", verbosity=1))
        assert "run `grant create on database postgres to pg_monitor`" in str(error)

    def test_a_worker_of_a_backend_that_is_not_there_is_refused(self) -> None:
        error = raised(CommandError, lambda: call_command("outlive_worker", backend="odd"))
        assert str(error) == "TASKS has no backend of outlive named 'odd': set --backend to its alias"

    def test_a_virtual_environment_in_the_project_is_not_watched(self) -> None:
        with tempfile.TemporaryDirectory() as project:
            for name in (".git", "venv", "cart"):
                Path(project, name).mkdir()
            Path(project, "venv", "pyvenv.cfg").touch()
            sys.path.insert(0, project)
            try:
                watched = reloading._folders()
            finally:
                sys.path.remove(project)
        assert {one.name for one in watched if one.parent == Path(project)} == {"cart"}
        assert MANAGE.parent / "shop" in watched
        assert not any("contrib" in one.parts for one in watched)

    def test_the_help_of_outlive_names_its_commands(self) -> None:
        said = load_command_class("outlive.django", "outlive").create_parser("manage.py", "outlive").format_help()
        assert "jobs, show, steps" in " ".join(said.split())

    def test_queues_that_no_task_can_have_are_doubted(self) -> None:
        err = io.StringIO()
        command = outlive_worker.Command(stderr=err, no_color=True)
        command._doubt_queues("--exclude-queues", "mail, mial", {"default", "mail"})
        assert err.getvalue() == "--exclude-queues names mial: not in QUEUES, so no job is there\n"
        command._doubt_queues("--queues", "mail", set())
        command._doubt_queues("--queues", "", {"default"})
        assert err.getvalue().count("\n") == 1

    def test_the_concurrency_of_celery_is_named_slots(self) -> None:
        said = str(raised(CommandError, lambda: call_command("outlive_worker", "-c", "4")))
        assert "-c is an option of Celery: write --slots 4" in said

    def test_commands_have_the_address_for_sessions_that_the_backend_has(self) -> None:
        ours = {"BACKEND": "outlive.django.backend.OutliveBackend", "OPTIONS": {"session_url": "host=direct"}}
        with override_settings(TASKS={"default": ours}):
            assert handover.environment("default")["OUTLIVE_SESSION_URL"] == "host=direct"
        assert "OUTLIVE_SESSION_URL" not in handover.environment("default")

    def test_queues_can_be_left_out(self) -> None:
        known = {"default", "mail", "slow"}
        assert outlive_worker._others(None, "mail, other", known) == "default,slow"
        for given, said in (
            (("mail", "slow", known), "--queues and --exclude-queues are both given: give only one of them"),
            ((None, "slow", set()), "--exclude-queues needs QUEUES in TASKS: list all queues there"),
            ((None, "default,mail,slow", known), "--exclude-queues leaves no queue of QUEUES to serve"),
        ):
            assert str(raised(CommandError, lambda: outlive_worker._others(*given))) == said  # noqa: B023

    def test_a_migration_of_django_is_not_needed(self) -> None:
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)


class AdminTests(TestCase):
    def test_an_active_worker_was_seen_now_and_a_dead_one_when_its_last_heartbeat_came(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("""
                insert into outlive.workers (id, name, hostname, pid, version, slots, state, started_at, last_seen)
                select gen_random_uuid(), state, 'here', 1, '0.2', 1, state, '2026-01-01', '2026-02-03 12:00Z'
                from unnest('{active,dead}'::text[]) state""")
        self.client.force_login(User.objects.create_superuser("ada"))
        page = self.client.get("/admin/outlive/worker/").content.decode()
        dead, active = sorted(re.findall('class="field-seen[^"]*">(.*?)</td>', page))
        assert (active, "Feb. 3, 2026" in dead) == ("now", True)

    def test_the_pages_list_and_change_nothing(self) -> None:
        result = tasks.add.enqueue(31415)
        assert dumped() == []
        self.client.force_login(User.objects.create_superuser("ada"))
        page = self.client.get("/admin/outlive/job/").content.decode()
        assert result.id in page
        assert f'href="http://board.example/jobs/{result.id}"' in page
        assert self.client.get("/admin/outlive/job/", {"q": result.id}).status_code == 200
        assert self.client.get(f"/admin/outlive/job/{result.id}/change/").status_code == 200
        for name in ("killer", "worker"):
            assert self.client.get(f"/admin/outlive/{name}/").status_code == 200
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("drop schema outlive cascade")
            answer = self.client.get("/admin/outlive/job/")
            assert (answer.status_code, b"run `manage.py migrate`" in answer.content) == (503, True)
            transaction.set_rollback(True)
        assert "31415" in self.client.get(f"/admin/outlive/job/{result.id}/change/").content.decode()
        for action in ("add/", f"{result.id}/delete/"):
            assert self.client.get(f"/admin/outlive/job/{action}").status_code == 403


class OperatingTests(TransactionTestCase):
    def test_jobs_are_found_by_filters_and_cancelled_by_those_who_may(self) -> None:
        result, other = tasks.add.enqueue(1), tasks.anything.enqueue()
        self.client.force_login(User.objects.create_superuser("ada"))

        def shown(**filters: str) -> set[str]:
            page = self.client.get("/admin/outlive/job/", filters)
            assert page.status_code == 200
            return {one.id for one in (result, other) if one.id in page.content.decode()}

        def buttons(id: str) -> list[str]:
            """What the page of a job offers."""
            page = self.client.get(f"/admin/outlive/job/{id}/change/").content.decode()
            return re.findall(r'name="action" value="(\w+)"', page)

        assert shown(state="pending") == {result.id, other.id}
        assert shown(state="failed") == set()
        assert shown(queue="mail", state="pending") == {other.id}
        assert shown(task="tests.django.tasks.add") == {result.id}
        chosen = {"action": "cancel", "_selected_action": [result.id]}
        said = self.client.post("/admin/outlive/job/", chosen, follow=True).content.decode()
        assert "1 job cancelled" in said
        assert shown(state="cancelled") == {result.id}
        with connection.cursor() as cursor:
            cursor.execute("select who, action from outlive.audit")
            assert cursor.fetchall() == [("ada (admin)", "cancel")]
        assert buttons(result.id) == ["retry"]
        assert buttons(other.id) == ["cancel"]
        viewer = User.objects.create_user("eve", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_job"))
        self.client.force_login(viewer)
        assert buttons(other.id) == []
        self.client.post("/admin/outlive/job/", {**chosen, "_selected_action": [other.id]})
        assert shown(state="pending") == {other.id}

    def test_the_list_of_jobs_counts_each_choice_of_a_filter(self) -> None:
        for _ in range(3):
            tasks.add.enqueue(1)
        tasks.anything.enqueue()
        self.client.force_login(User.objects.create_superuser("ada"))

        def counts(**given: str) -> dict[str, str]:
            page = self.client.get("/admin/outlive/job/", {"_facets": "True", **given}).content.decode()
            return dict(re.findall(r">\s*(\w+) \((.*?)\)", page))

        assert (counts()["pending"], counts()["failed"]) == ("4", "0")
        assert (counts(queue="mail")["pending"], counts(state="failed")["pending"]) == ("1", "4")
        assert counts(q="tests.django.tasks.add")["pending"] == "-"

    def test_a_search_takes_the_first_digits_of_an_id_or_a_task(self) -> None:
        result, other = tasks.add.enqueue(1), tasks.anything.enqueue()
        self.client.force_login(User.objects.create_superuser("ada"))

        def found(**given: str) -> set[str]:
            page = self.client.get("/admin/outlive/job/", given).content.decode()
            return {one.id for one in (result, other) if one.id in page}

        assert found(q=short_id(result.id)) == found(q=result.id[:35].upper()) == {result.id}
        assert found(q=result.id[:6]) == {result.id, other.id}
        assert found(q=result.id[:6], queue="mail") == {other.id}
        assert found(q=result.id[:35], state="failed") == set()
        assert found(q="tests.django.tasks.add") == found(q="tests.django.tasks.add", state="pending") == {result.id}
        assert found(q="nothing") == set()

    def test_a_list_says_that_it_ends_before_all_jobs_do(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("select outlive.enqueue('add', '{}') from generate_series(1, 1001)")
        self.client.force_login(User.objects.create_superuser("ada"))
        said = "The list ends after 1,000: there may be more"
        assert said in self.client.get("/admin/outlive/job/", {"state": "pending"}).content.decode()
        assert said not in self.client.get("/admin/outlive/job/").content.decode()
        assert self.client.get("/admin/outlive/job/", {"p": "99", "e": "1"}).status_code == 200, "a page without a list"


class FlushTests(TransactionTestCase):
    """TransactionTestCase commits, and flushes the database after each test."""

    def test_a_job_of_one_test_is_committed(self) -> None:
        tasks.add.enqueue(1)
        assert Job.objects.count() == 1

    def test_a_job_of_another_test_is_gone(self) -> None:
        tasks.add.enqueue(2)
        assert Job.objects.count() == 1


class WorkingTests(TransactionTestCase):
    """A real worker on the test database."""

    def setUp(self) -> None:
        handle, name = tempfile.mkstemp(prefix="outlive-django-", dir="/var/tmp")
        self.log = Path(name)
        environ = {**os.environ, "PGDATABASE": str(connection.settings_dict["NAME"]), "TASKS_CONNECT": "1"}
        words = [sys.executable, str(MANAGE), "outlive_worker", "--slots", "2", "--name", "ada"]
        self.worker = subprocess.Popen(words, env=environ, cwd="/", stdout=handle, stderr=handle)
        os.close(handle)
        self.addCleanup(self.stop)

    def stop(self) -> None:
        self.worker.terminate()
        assert self.worker.wait(30) == 0
        self.log.unlink()

    def finished(self, result: TaskResult) -> TaskResult:
        def is_finished() -> bool:
            assert self.worker.poll() is None, self.log.read_text()
            result.refresh()
            return bool(result.is_finished)

        eventually(is_finished, within_s=60, what=f"{result.task.module_path} finishes")
        return result

    def test_a_worker_runs_the_tasks_and_their_results_come_back(self) -> None:
        User.objects.create_user("ada")
        made = {
            one.name: one.enqueue()
            for one in (
                *(tasks.count_users, tasks.second_try, tasks.refuse, tasks.return_a_set, tasks.crash),
                *(tasks.anything, tasks.sessions, tasks.later),
            )
        }
        given_up = [tasks.give_up.enqueue(how) for how in ("fail", "final", "retry")]
        added = self.finished(tasks.add.enqueue(2, b=3))
        assert (added.return_value, added.status, added.attempts) == (5, "SUCCESSFUL", 1)
        assert added.worker_ids == ["ada"]
        assert added.enqueued_at <= added.started_at == added.last_attempted_at <= added.finished_at
        done = {name: self.finished(result) for name, result in made.items()}
        assert done["count_users"].return_value == 1
        assert done["anything"].return_value == [[], {}]
        assert (done["later"].return_value, done["later"].attempts, done["later"].errors) == (2, 3, [])
        self.check_retry(done["second_try"])
        self.check_failures(done)
        self.check_ends([*map(self.finished, given_up), *(done[name] for name in ("second_try", "refuse", "later"))])
        self.check_connections(done["sessions"])
        self.check_schedules()
        self.check_form()
        self.check_more()

    def check_retry(self, result: TaskResult) -> None:
        assert result.status == "SUCCESSFUL", [error.traceback for error in result.errors]
        assert result.return_value == [2, 1, "RUNNING", 1]
        assert (result.attempts, result.worker_ids) == (2, ["ada", "ada"])
        assert result.started_at < result.last_attempted_at
        (error,) = result.errors
        lines = [one for one in self.log.read_text().splitlines() if "Refused: not yet" in one]
        assert [" WARNING " in one for one in lines] == [True], "an attempt that is tried again is one line"
        assert error.exception_class is tasks.Refused
        assert "not yet\nand not soon" in error.traceback

    def check_failures(self, done: dict[str, TaskResult]) -> None:
        for name, kind, text in (
            ("refuse", "builtins.ValueError", "in refuse\n"),
            ("return_a_set", "builtins.TypeError", "its return value is not JSON"),
            ("crash", "outlive.errors.JobFailed", "Fatal Python error: Segmentation fault"),
            ("crash", "outlive.errors.JobFailed", "crashed: "),
        ):
            result = done[name]
            (error,) = result.errors
            assert (result.status, error.exception_class_path) == ("FAILED", kind)
            assert text in error.traceback, error.traceback
            assert issubclass(error.exception_class, Exception)
            assert result.finished_at
            raised(ValueError, lambda: result.return_value)  # noqa: B023
        assert "RUNNING" not in done["crash"].errors[0].traceback  # Django's own log line is not the cause.
        self.client.force_login(User.objects.create_superuser("root"))
        page = self.client.get(f"/admin/outlive/job/{done['refuse'].id}/change/").content.decode()
        assert ("in refuse" in page, "ValueError: no: never" in page) == (True, True), page
        ended = display_for_value(done["refuse"].finished_at, "-")
        assert (f"failed on ada, {ended}<br>" in page, "From 0, the most urgent" in page) == (True, True), page
        assert "ValueError: no: never" in self.client.get("/admin/outlive/job/", {"state": "failed"}).content.decode()
        assert "[[],{}]" in self.client.get(f"/admin/outlive/job/{done['anything'].id}/change/").content.decode()
        killer = f"/admin/outlive/killer/{done['crash'].id}/change/"
        assert 'name="action" value="release"' in self.client.get(killer).content.decode()
        said = self.log.read_text()
        assert (said.count("ValueError: no: never\n"), "state=FAILED" in said) == (1, False), said
        assert f"Task id={done['anything'].id} path=tests.django.tasks.anything state=SUCCESSFUL" in said
        assert "NoneType: None" not in said, "a job that has succeeded has no traceback"

    def check_ends(self, results: list[TaskResult]) -> None:
        """Django hears of the end of a job once, and of no attempt that is tried again."""
        assert [one.attempts for one in results[:3]] == [1, 1, 2]
        lines = [line.partition("ended: ")[2] for line in self.log.read_text().splitlines()]
        for one in results:
            assert [line for line in lines if line.startswith(one.id)] == [f"{one.id} {one.status}"], one

    def check_connections(self, first: TaskResult) -> None:
        """Each process has connections of its own, and closes after each job those that Django would close."""
        seen = [first.return_value]
        while len({one["process"] for one in seen}) == len(seen):  # Until two ran in one process.
            seen.append(self.finished(tasks.sessions.enqueue()).return_value)
        assert not any(one["had"] for one in seen)
        assert len({one["default"] for one in seen}) == len(seen)
        kept = {(one["process"], one["kept"]) for one in seen}
        assert len({session for _, session in kept}) == len(kept) == len({process for process, _ in kept})
        # Its pool opens what a job needs, and keeps it for the next job of the process.
        assert {one["pooled"] for one in seen} == {1}
        (zygote,) = {one["zygote"] for one in seen}
        assert zygote
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from pg_stat_activity where pid = %s", [zygote])
            assert cursor.fetchone() == (0,)

    def check_schedules(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("select name, outlive.run_schedule(name) from outlive.schedules order by name")
            fired = dict(cursor.fetchall())
        done = {name: self.finished(tasks.greet.get_result(str(id))) for name, id in fired.items()}
        assert {name: one.return_value for name, one in done.items()} == {
            "new year": "hello Ada",
            "tests.django.tasks.greet": "hello Bob",
        }
        assert {(one.task.queue_name, outlive_priority(one.task.priority)) for one in done.values()} == {
            ("mail", outlive_priority(50))
        }

    def check_form(self) -> None:
        """A form of the dashboard asks for the arguments of a task, and refuses what can't be one."""

        def asked(task: str, **typed: str) -> JobRequest:
            with connection.cursor() as cursor:
                cursor.execute("select name, signature::text from outlive.tasks where name = %s", [task])
                row = dict(zip(("name", "signature"), cursor.fetchone(), strict=True))
            fields = {f"arg.{name}": text for name, text in typed.items()}
            return enqueuing.request(row, fields, By("ada", UUID(int=1)))

        add, later = "tests.django.tasks.add", "tests.django.tasks.later"
        assert raised(BadFields, lambda: asked(add)).fields == {"arg.a": "give a value: it has no default"}
        assert raised(BadFields, lambda: asked(add, a="one")).fields == {"arg.a": "this is not a number"}
        assert (asked(add, a="2").args, asked(later, page="2").args) == (b'{"a":2}', b'{"page":2}')
        assert asked(later).args == b"{}", "the context is not asked for"

    def check_more(self) -> None:
        more = self.finished(tasks.order_more.enqueue(7))
        assert self.finished(tasks.add.get_result(more.return_value)).return_value == 8
        pages = __import__("tests.django.pages").django.pages
        assert self.finished(pages.visit.enqueue()).return_value == "found"
        job = outlive.django.app().get_job(UUID(tasks.add.enqueue(9).id))
        assert job.result(30) == 10  # Its sessions stay open, and the runner drops the database nevertheless.
