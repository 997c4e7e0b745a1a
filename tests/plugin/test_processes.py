"""Jobs that a test runs in a real worker, and the plugin in runs of pytest of its own."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

import outlive
from outlive import Outcome, State, embedded
from outlive import pytest as plugin
from outlive.client.redirection import redirected
from outlive.pytest import Jobs, processes
from outlive.pytest.databases import Databases, with_name
from outlive.pytest.processes import wanted
from outlive.temporary.server import temporary_home
from tests.driving.workers import ROOT
from tests.plugin import shop


def test_real_children_run_what_would_kill_the_test(outlive_jobs):
    dead, sent = shop.quit_process.using(max_crashes=1).enqueue(), shop.send.enqueue(7)
    ran = {one.job_id: one for one in outlive_jobs.run(in_processes=True)}
    assert (ran[dead.id].outcome, ran[dead.id].state) == (Outcome.CRASHED, State.QUARANTINED)
    assert (ran[sent.id].outcome, ran[sent.id].result) == (Outcome.SUCCEEDED, "7")
    assert shop.seen == []
    assert outlive_jobs.run(in_processes=True) == []


def test_jobs_of_a_shared_task_share_a_real_child(outlive_jobs):
    shop.app.enqueue_many([shop.fetch.job(order) for order in range(5)])
    ran = [one for one in outlive_jobs.run(in_processes=True) if one.task != shop.hourly.name]  # At a full hour.
    assert [one.outcome for one in ran] == [Outcome.SUCCEEDED] * 5
    [(pid, opened)] = {(pid, tuple(opened)) for pid, opened in (one.result for one in ran)}
    assert (pid != os.getpid(), opened) == (True, ("opened",))


def test_a_process_is_killed_after_a_step_and_another_one_goes_on_from_there(outlive_jobs):
    before = outlive_jobs.now()
    job = shop.fulfil.enqueue(7)
    killed, done = (one for one in outlive_jobs.run(kill_after="pack") if one.task != shop.hourly.name)
    assert (killed.job_id, killed.outcome, killed.state) == (job.id, Outcome.CRASHED, State.RETRYABLE)
    first, second, last = done.result
    assert first != second == last
    assert (done.attempt, job.result(5)) == (2, done.result)
    assert outlive_jobs.now() - before > timedelta(minutes=30)  # The clock has moved to its next attempt.


def test_a_step_that_no_job_has_kept_is_named_with_those_that_were(outlive_jobs):
    shop.fulfil.enqueue(7)
    with pytest.raises(outlive.OutliveError, match=r"no job has kept the step charge, but pack, pack#2"):
        outlive_jobs.run(kill_after="charge")


def test_a_killed_job_goes_on_also_if_its_worker_stops_only_after_its_backoff(outlive_jobs, monkeypatch):
    drain = processes.drain

    def drain_and_stop_slowly(*how):
        drain(*how)
        outlive_jobs.advance("1h")

    monkeypatch.setattr(processes, "drain", drain_and_stop_slowly)
    job = shop.fulfil.enqueue(7)
    ran = [one.outcome for one in outlive_jobs.run(kill_after="pack") if one.job_id == job.id]
    assert ran == [Outcome.CRASHED, Outcome.SUCCEEDED]


def test_a_run_that_kills_no_process_is_no_proof(outlive_jobs):
    shop.fulfil.enqueue(7)
    outlive_jobs.run()
    with pytest.raises(outlive.OutliveError, match="no process was killed after the step pack: it was kept before"):
        outlive_jobs.run(kill_after="pack")


def test_a_task_that_no_worker_can_import_is_refused(outlive_db):
    app = outlive.App()

    @app.task(name="hidden")
    def hidden() -> None: ...

    jobs = Jobs(outlive_db, [app])
    assert wanted([app, shop.app], {shop.send.name}).apps == ["tests.plugin.shop:app"]
    hidden.enqueue()
    with pytest.raises(outlive.ConfigError, match="is inside a function, where no worker finds it"):
        jobs.run(in_processes=True)
    assert [one.state for one in jobs.run()] == [State.SUCCEEDED]
    jobs.close()


def test_all_apps_use_the_database_and_the_cache_of_the_test(outlive_jobs, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTLIVE_MAX_ATTEMPTS", "7")  # Settings are read when they are first needed.
    made = outlive.App("postgresql://elsewhere.invalid/x")
    for app in (made, shop.app):
        assert (app.config.database_url, app.config.max_attempts) == (outlive_jobs.url, 7)
        assert app.config.cache_dir == str(tmp_path / "outlive-cache")


def test_apps_have_their_own_settings_again_after_a_test(server_url):
    before = shop.app.configure(None)
    with redirected(server_url):
        assert shop.app.config.database_url == server_url
    assert (before, shop.app.configure(None)) == (None, None)


def test_a_database_that_a_killed_run_has_left_is_dropped(server_url):
    killed, alive = Databases(server_url), Databases(server_url)
    left, kept = (databases._copy("template0") for databases in (killed, alive))
    killed._admin.close()  # As the kernel does when a process dies.
    try:
        Databases(server_url).close()
        with psycopg.connect(server_url) as admin:
            rows = admin.execute("select datname from pg_database where datname = any(%s)", [[left, kept]]).fetchall()
    finally:
        alive.close()
    assert rows == [(kept,)]


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("postgresql://u:p@host:5432/old?sslmode=require", "postgresql://u:p@host:5432/new?sslmode=require"),
        ("postgresql:///postgres?host=/tmp&user=u", "postgresql:///new?host=/tmp&user=u"),
        ("postgres://host", "postgres://host/new"),
        ("host=/tmp dbname=old", "dbname=new host=/tmp"),
    ],
)
def test_the_address_of_a_test_is_a_url_if_the_servers_is_one(url, other):
    assert with_name(url, "new") == other


TESTS = """
import outlive
import pytest
import psycopg
import sys

app = outlive.App()

@pytest.fixture(scope="session")
def outlive_db_setup():
    def setup(url):
        with psycopg.connect(url) as connection:
            connection.execute("create table orders (id int)")
    return setup

@app.task
def order(number: int) -> None:
    with psycopg.connect(app.config.database_url) as connection:
        connection.execute("insert into orders values (%s)", [number])

@pytest.mark.parametrize("number", range(3))
def test_each_test_has_its_own_database(outlive_jobs, number):
    order.enqueue(number)
    outlive_jobs.run(raising=True)
    with psycopg.connect(outlive_jobs.url) as connection:
        assert connection.execute("select id from orders").fetchall() == [(number,)]
"""


def test_the_plugin_imports_no_driver_before_a_fixture_is_used():
    unwanted = "{'psycopg', 'outlive.client.app', 'outlive.store', 'outlive.embedded'}"
    code = f"import sys, outlive.pytest; print({unwanted} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


@pytest.mark.long
def test_a_run_of_pytest_finds_the_plugin_and_brings_its_own_server(tmp_path):
    (tmp_path / "test_orders.py").write_text(TESTS)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OUTLIVE_", "PYTEST_"))}
    with temporary_home("plugin") as home:
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                *("-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "."),
            ],
            cwd=tmp_path,
            env={**ours, "PYTHONPATH": str(ROOT / "src"), "OUTLIVE_HOME": str(home / "server")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "3 passed" in ran.stdout, ran.stdout + ran.stderr
        assert [path.name for path in home.iterdir()] == ["server-tests"]
        assert embedded.release(home / "server-tests", wait_s=20), "the server did not stop"


def test_processes_of_one_run_make_one_template(server_url):
    """As those of pytest-xdist do when they begin at the same time."""
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(Databases, [server_url] * 2)
    try:
        with first.new() as one, second.new() as other:
            assert one != other
            for url in (one, other):
                with psycopg.connect(url) as connection:
                    assert connection.execute("select count(*) from outlive.jobs").fetchone() == (0,)
    finally:
        first.close()
        second.close()


def test_a_server_that_is_away_is_one_sentence():
    with pytest.raises(
        pytest.fail.Exception, match=r"outlive_db can make no database: (.|\n)*OUTLIVE_TEST_DATABASE_URL"
    ):
        plugin._open("postgresql://127.0.0.1:1/none")
    with pytest.raises(pytest.fail.Exception, match=r"leave out \+asyncpg") as raised:
        plugin._open("postgresql+asyncpg://127.0.0.1:1/none")
    assert raised.value.__context__ is None
