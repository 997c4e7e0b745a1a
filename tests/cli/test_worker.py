"""The commands that run jobs, as processes. tests/processes and tests/guarantees test the workers themselves."""

import fcntl
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import outlive
from outlive.states import State
from tests import faults
from tests.driving.commands import Cli, Ran, ended, started
from tests.driving.making import Queue
from tests.waiting import eventually

Start = Callable[..., "subprocess.Popen[str]"]
TARGET = "tests.faults:app"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands, and kills those that still run after the test."""
    with started() as commands:

        def make(url: str | None, *words: object, **environment: str) -> "subprocess.Popen[str]":
            commands.append(Cli(url).process(*words, **environment))
            return commands[-1]

        yield make


def enqueued(url: str) -> outlive.Job[int]:
    app = outlive.App(url)
    task = app.task(faults.add.function)
    return task.enqueue(20, 22)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--log-level", "debug"], ["Worker", "Starting job", "completed successfully", "crawler-1"]),
        (["--log-level", "warning"], []),
        (["--quiet"], []),
    ],
)
def test_a_worker_runs_jobs_logs_as_it_is_told_and_ends_well(database_url, start, options, lines):
    job = enqueued(database_url)
    worker = start(database_url, "worker", TARGET, "--slots", 1, "--name", "crawler-1", *options)
    assert job.result(timeout=20) == 42
    worker.send_signal(signal.SIGTERM)
    ran = ended(worker)
    assert (ran.code, ran.out) == (0, "")
    assert all(line in ran.err for line in lines)
    # Workers of other tests may have died on this machine.
    others = [line for line in ran.err.splitlines() if "of workers that died on this machine" not in line]
    assert lines or not others


def test_the_format_of_the_log_is_the_operators(database_url, start):
    job = enqueued(database_url)
    worker = start(database_url, "worker", TARGET, "--slots", 1, "--log-format", "json")
    assert job.result(timeout=20) == 42
    worker.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in ended(worker).err.splitlines()]
    assert str(job.id) in [line.get("job_id") for line in lines]
    refused = ended(start(database_url, "worker", TARGET, "--log-format", "xml"))
    assert "log_format is 'xml': it must be text or json" in refused.err


def test_a_worker_whose_stderr_is_not_read_runs_every_job_once_and_stops_when_told(database_url, start):
    """Fault 56."""
    app = outlive.App(database_url)
    task = app.task(recycle_after=100)(faults.warm.function)
    worker = start(database_url, "worker", TARGET, "--slots", 2)
    assert worker.stderr
    fcntl.fcntl(worker.stderr, fcntl.F_SETPIPE_SZ, 4096)
    app.enqueue_many([task.job(n) for n in range(300)])
    with Queue.at(database_url) as connection:
        ended_once = "select count(*), count(distinct job_id) from outlive.attempts where outcome = 'succeeded'"
        eventually(lambda: connection.execute(ended_once).fetchone() == (300, 300), within_s=60)
        assert connection.execute("select count(*) from outlive.attempts").fetchone() == (300,)
        assert connection.execute("select count(*) from outlive.worker_states where state = 'dead'").fetchone() == (0,)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    app.connections.close()


def test_an_app_that_says_much_at_import_starts_also_where_stderr_is_not_read(database_url, start, tmp_path):
    """Fault 56, for the process that imports the app."""
    flood = "import sys\nsys.stderr.write('word ' * 100_000)\nprint('said on stdout ' * 20_000)\n"
    (tmp_path / "shop_named.py").write_text(flood + NAMED.format(url=database_url))
    app = outlive.App(database_url)
    worker = start(None, "worker", "shop_named:app", "--slots", 1, PYTHONPATH=str(tmp_path))
    with Queue.at(database_url) as connection:
        job = connection.make("shop_named.add", args=b"[20, 22]", notify=True)
    assert app.get_job(job).result(timeout=30) == 42
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    app.connections.close()


def test_output_of_an_app_at_import_is_on_the_workers_stderr(database_url, start, tmp_path):
    (tmp_path / "shop_named.py").write_text("print('a word at import')\n1 / 0\n")
    ran = ended(start(database_url, "worker", "shop_named:app", PYTHONPATH=str(tmp_path)))
    assert ran.code == 3
    said, failed, *_ = without_log(ran).splitlines()
    assert said == "a word at import"
    assert "ZeroDivisionError" in failed


def test_jobs_have_the_settings_of_the_file_that_their_worker_was_given(database_url, start, tmp_path):
    (tmp_path / "settings.toml").write_text("max_args_bytes = 10\n")
    app = outlive.App(database_url)
    job = app.task(faults.spawn.function).using(max_attempts=1).enqueue("key")
    start(database_url, "worker", TARGET, "--slots", 1, "--config", tmp_path / "settings.toml")
    with pytest.raises(outlive.JobFailed, match="over the limit of 10"):
        job.result(timeout=20)


def test_a_worker_stops_when_no_job_is_left_that_can_run_now(database_url, start):
    app = outlive.App(database_url)
    task = app.task(faults.add.function)
    jobs = [task.enqueue(1, number) for number in range(5)]
    later = task.using(delay="1h").enqueue(1, 1)
    worker = start(database_url, "worker", TARGET, "--slots", 2, "--batch")
    assert ended(worker).code == 0
    assert [job.status() for job in (*jobs, later)] == [State.SUCCEEDED] * 5 + [State.PENDING]


def test_a_worker_stops_after_as_many_jobs_as_it_is_told_to_run(database_url, start):
    app = outlive.App(database_url)
    jobs = [app.task(faults.add.function).enqueue(1, number) for number in range(5)]
    worker = start(database_url, "worker", TARGET, "--slots", 2, "--max-tasks", 3)
    ran = ended(worker)
    assert (ran.code, "drains, because it has begun as many jobs as it may" in ran.err) == (0, True)
    assert sorted(job.status() for job in jobs) == [State.PENDING] * 2 + [State.SUCCEEDED] * 3


def without_log(ran: Ran) -> str:
    """The output of a command without its log lines."""
    return "".join(line for line in ran.err.splitlines(True) if not re.match(r"\d{4}-\d\d-\d\dT", line))


BROKEN = """
import outlive
app = outlive.App()
import inner
"""


@pytest.mark.parametrize("verb", ["worker", "up"])
def test_an_app_that_cannot_be_imported_is_told_with_file_line_and_error_before_the_database_is_touched(
    empty_database_url, start, tmp_path, verb
):
    (tmp_path / "outer.py").write_text(BROKEN)
    (tmp_path / "inner.py").write_text("import json\n\njson.loads('{')\n")
    ran = ended(start(empty_database_url, verb, "outer:app", PYTHONPATH=str(tmp_path)))
    assert ran.code == 3
    first, second, *rest = without_log(ran).splitlines()
    assert first.startswith(f"outlive: {tmp_path}/inner.py, line 3: json.decoder.JSONDecodeError: Expecting property")
    assert first.endswith("(importing outer)")
    assert len(first) < 300
    assert second == "Traceback (most recent call last):"
    assert rest[0] == f'  File "{tmp_path}/outer.py", line 4, in <module>'
    assert "importlib" not in ran.err
    with Queue.at(empty_database_url) as connection:
        assert connection.execute("select to_regnamespace('outlive')").fetchone() == (None,)


NAMED = """
import outlive
app = outlive.App({url!r})

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


SETTLED = 'App(database_url={url!r}, name="from code", slots=7, max_attempts=2, lease_s="1m", queues=["default"])'


@pytest.mark.parametrize("verb", ["worker", "up"])
def test_a_worker_takes_the_database_and_the_other_settings_of_its_app(
    database_url, empty_database_url, start, tmp_path, verb
):
    url = empty_database_url if verb == "up" else database_url
    (tmp_path / "shop_named.py").write_text(NAMED.replace("App({url!r})", SETTLED).format(url=url))
    around = {"PYTHONPATH": str(tmp_path), "OUTLIVE_HOME": str(tmp_path / "home")}
    start(None, verb, "shop_named:app", "--slots", 1, **around)
    with Queue.at(url) as connection:
        eventually(lambda: connection.execute("select to_regclass('outlive.jobs')").fetchone() != (None,), within_s=20)
        made = ended(start(None, "enqueue", "shop_named:app", "add", "[20, 22]", "--json", **around)).json
        ended_well = "select result::text from outlive.attempts where job_id = %s"
        eventually(lambda: connection.execute(ended_well, [made["id"]]).fetchone() == ("42",), within_s=20)
        worker = connection.execute("select name, slots, queues from outlive.workers").fetchone()
        assert worker == ("from code", 1, ["default"])  # The flag overrides the slots.
        assert connection.execute("select max_attempts from outlive.tasks").fetchone() == (2,)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("words", [("worker", "shop_named:app"), ("enqueue", "shop_named:app", "add", "[1, 2]")])
def test_an_app_and_settings_that_name_different_databases_are_refused(database_url, start, tmp_path, words):
    own = make_conninfo(database_url, dbname="another", password="s3cret-pass")
    (tmp_path / "shop_named.py").write_text(NAMED.format(url=own))
    ran = ended(start(database_url, *words, PYTHONPATH=str(tmp_path)))
    assert ran.code == 2
    assert "dbname=another" in ran.err
    assert f"dbname={conninfo_to_dict(database_url)['dbname']}" in ran.err
    assert "s3cret-pass" not in ran.err
    assert without_log(ran).count("\n") == 1


def test_an_app_and_settings_may_name_the_same_database_in_different_words(database_url, start, tmp_path):
    own = make_conninfo(database_url, password="s3cret-pass", application_name="shop")
    (tmp_path / "shop_named.py").write_text(NAMED.format(url=own))
    ran = ended(start(database_url, "enqueue", "shop_named:app", "add", "[1, 2]", PYTHONPATH=str(tmp_path)))
    assert ran.code == 0, ran.err


def test_a_worker_on_a_database_without_schema_is_exit_code_5(empty_database_url, start):
    ran = ended(start(empty_database_url, "worker", TARGET))
    assert ran.code == 5
    assert "outlive migrate" in ran.err


def test_a_worker_whose_role_has_too_few_rights_is_told_so(database_url, start):
    ran = ended(start(make_conninfo(database_url, options="-c role=outlive_enqueue"), "worker", TARGET))
    assert ran.code == 1
    assert "outlive: the database refused: permission denied for " in ran.err
    assert "; run this as a member of outlive_worker" in ran.err
    assert "does not answer" not in ran.err


def test_a_reload_that_brings_another_database_is_told(database_url, start, tmp_path):
    app = tmp_path / "shop_named.py"
    app.write_text(NAMED.format(url=database_url))
    worker = start(None, "worker", "shop_named:app", "--slots", 1, PYTHONPATH=str(tmp_path))
    assert worker.stderr
    assert any(" started" in line for line in worker.stderr)
    app.write_text(NAMED.format(url=make_conninfo(database_url, dbname="another_one")))
    worker.send_signal(signal.SIGHUP)
    told = next(line for line in worker.stderr if "the app's settings have changed" in line)
    assert "restart this worker" in told
    worker.send_signal(signal.SIGTERM)
    assert ended(worker).code == 0
