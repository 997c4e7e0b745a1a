"""Declaring tasks: it opens no connection and no file, uses the names that a worker imports, and refuses nonsense."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import outlive
from outlive import foreign_options, validation
from outlive.client.options import JobOptions
from tests.client.example import add, fetch, take

SCRIPT = """
import multiprocessing
import sys
import outlive

app = outlive.App()

@app.task
def add(a, b):
    return a + b

def name():
    return add.name

if __name__ == "__main__":
    print(add.name)
    if "spawn" in sys.argv:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(name))
"""


def run_python(*words: str, cwd: Path, **environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_task_is_named_by_its_module_and_function_and_looks_like_it() -> None:
    assert add.name == "tests.client.example.add"
    assert (add.__name__, add.__module__, add.__wrapped__) == ("add", "tests.client.example", add.function)  # type: ignore[attr-defined]


def test_importing_and_declaring_reads_no_configuration_and_opens_no_connection(tmp_path):
    (tmp_path / "outlive.toml").write_text("this is not TOML")
    (tmp_path / "declare.py").write_text(
        "import tests.client.example as e; e.add.using(queue='q').job(1); print(e.add(1, 2))"
    )
    said = run_python(
        "declare.py",
        cwd=tmp_path,
        PYTHONPATH=str(Path(__file__).parents[2]),
        OUTLIVE_DATABASE_URL="postgresql://user:nothing@127.0.0.1:1/none",
        OUTLIVE_NONSENSE="1",
    )
    assert said == ["3"]


@pytest.mark.parametrize("words", [("jobs.py",), ("-m", "jobs")])
def test_a_script_that_is_run_names_its_tasks_as_a_worker_does_that_imports_it(tmp_path, words):
    (tmp_path / "jobs.py").write_text(SCRIPT)
    assert run_python(*words, "spawn", cwd=tmp_path) == ["jobs.add", "jobs.add"]


def test_attributes_of_the_function_do_not_disturb_the_task():
    def function() -> None: ...

    function.__dict__.update(name="other", app="other")
    app = outlive.App()
    task = app.task(name="mine")(function)
    assert task.name == "mine"
    assert task.app is app


def plain() -> None: ...


def other() -> None: ...


def numbers() -> Iterator[int]:
    yield 1


async def anumbers() -> AsyncIterator[int]:
    yield 1


def test_two_tasks_of_the_same_name_are_refused_and_the_same_function_is_not():
    app = outlive.App()
    app.task(plain)
    app.task(max_attempts=3)(plain)
    named: Any = ({"name": "tests.client.test_declaring.plain"}, {"was": "tests.client.test_declaring.plain"})
    for options in named:
        with pytest.raises(outlive.ConfigError, match=r"two tasks are named tests.client.test_declaring.plain: give"):
            app.task(**options)(other)
    assert other not in [task.function for task in app.tasks.values()]


def test_a_task_may_have_a_name_of_its_own_and_names_that_it_had_before():
    app = outlive.App()
    task = app.task(name="send", was=["shop.send", "mail.send"])(plain)
    assert (task.name, task.job().request.task) == ("send", "send")
    assert app.tasks == {"send": task, "shop.send": task, "mail.send": task}
    assert app.task(was="old")(other).was == ("old",)


def test_a_task_without_a_queue_has_that_of_the_first_pattern_that_fits_its_name():
    app = outlive.App(queue_of={"mail.urgent.*": "urgent", "mail.*": "mail"})
    found = {name: app.task(name=name)(plain) for name in ("mail.urgent.send", "mail.send", "email.send")}
    found["mail.own"] = app.task(name="mail.own", queue="own")(plain)
    queues = {name: (task.policy.queue, task.job().request.queue) for name, task in found.items()}
    assert queues == {
        "mail.urgent.send": ("urgent", "urgent"),
        "mail.send": ("mail", "mail"),
        "email.send": (None, "default"),
        "mail.own": ("own", "own"),
    }


def test_a_task_may_have_a_priority_of_its_own_and_a_job_another():
    task = outlive.App().task(priority=2)(plain)
    assert (task.job().request.priority, task.using(priority=7).job().request.priority) == (2, 7)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda: 1, r"<lambda> has no name in its module, where a worker looks for it: define it there with def"),
        (print, "is not a function"),
        (object(), "is not a function"),
        (int, r"<class 'int'> is not a function: put @app.task on a function of a module"),
        (numbers, r"numbers is a generator, and a call of it runs nothing: return a list"),
        (anumbers, r"anumbers is a generator"),
    ],
)
def test_what_no_worker_could_run_is_refused_where_it_is_declared(function, sentence):
    with pytest.raises(outlive.ConfigError, match=sentence):
        outlive.App().task(function)


def tell(job: UUID, error: str) -> None: ...


@pytest.mark.parametrize("function", [numbers, anumbers, asyncio.wait_for, int, lambda number: number])
def test_only_a_plain_function_can_run_before_the_first_job_of_a_process(function):
    with pytest.raises(outlive.ConfigError, match="takes a plain function without parameters, not <"):
        outlive.App().on_process_start(function)


@pytest.mark.parametrize("function", [plain, anumbers, asyncio.wait_for, int, lambda number: number])
def test_only_a_generator_can_run_around_jobs(function):
    with pytest.raises(outlive.ConfigError, match="takes a plain function without parameters that yields once, not <"):
        outlive.App().around_job(function)


def test_one_task_that_takes_an_id_and_an_error_learns_of_failures():
    app = outlive.App()
    with pytest.raises(outlive.ConfigError, match="on_failed takes a task"):
        app.on_failed(plain)  # type: ignore[type-var]
    with pytest.raises(outlive.BadArguments):
        app.on_failed(app.task(plain))  # type: ignore[type-var]
    told = app.task(name="told")(tell)
    assert app.on_failed(told.using(queue="alerts")).name == "told"
    assert app.follower == {"task": "told", "queue": "alerts", "source": "", "on_conflict": "skip"}
    with pytest.raises(outlive.ConfigError, match="given twice"):
        app.on_failed(told)


def test_a_task_of_another_app_does_not_learn_of_failures():
    app, other = outlive.App(), outlive.App()
    told = app.task(name="told")(tell)
    with pytest.raises(
        outlive.ConfigError, match=r"told is not a task of this app: put @app\.on_failed above its @app"
    ):
        other.on_failed(told.using(queue="alerts"))
    assert other.follower is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bind": True}, "unknown option bind; leave it out: outlive.current"),
        ({"ignore_result": True}, "leave it out: a job without a return value stores nothing"),
        ({"retry_jitter": True}, "leave it out: each delay is shortened at random"),
        ({"link_error": plain}, r"use task.using\(on_failed=…\)"),
        ({"retry_kwargs": {}}, r"did you mean max_attempts\? \(its countdown is a list of one"),
        ({"typing": False}, "leave it out: enqueue always compares the arguments"),
        ({"throws": (KeyError,)}, "leave it out, and raise outlive.Cancel for what is no error"),
        ({"reject_on_worker_lost": True}, r"did you mean max_crashes\? \(a job whose process dies is always retried"),
        ({"task_id": "7"}, r"use task.using\(id=…\) \(it is a uuid.UUID"),
        ({"trail": True}, "leave it out: the dashboard and"),
        ({"base": object}, "@app.on_failed, @app.around_job and @app.on_process_start in place of a class"),
    ],
)
def test_options_of_celery_are_refused_with_what_to_write(options, sentence):
    with pytest.raises(outlive.ConfigError, match=sentence):
        outlive.App().task(**options)


@pytest.mark.parametrize(
    ("what", "name"), [(what, name) for what, names in foreign_options.ATTRIBUTES.items() for name in names]
)
def test_calls_of_other_systems_say_what_to_write(what, name):
    owner = {"a task": add, "a job": add.app.get_job(uuid4()), "an app": add.app}[what]
    with pytest.raises(AttributeError, match=rf"{what} has no {name}: (write|raise|import|give|declare) "):
        getattr(owner, name)
    assert not hasattr(owner, "dealy")


@pytest.mark.parametrize("name", foreign_options.SETTINGS)
def test_settings_of_celery_are_refused_with_what_to_write(name):
    settings: dict[str, Any] = {name: "x"}
    with pytest.raises(outlive.ConfigError, match=rf"^App has the unknown setting {name}; (?!use one of)\w+"):
        outlive.App(**settings)


def test_a_call_is_no_step_of_a_chain():
    with pytest.raises(outlive.ConfigError, match=r"a step is 3: .*f\.job\(1\) is a job for later, and f\(1\) calls"):
        outlive.chain(add(1, 2))  # type: ignore[call-overload]


def test_a_name_is_no_database():
    with pytest.raises(outlive.ConfigError, match=r"'shop' is not the address of a database: write App\(\)"):
        outlive.App("shop")
    for address in ("postgresql://localhost/shop", "dbname=shop"):
        assert outlive.App(address).settings["database_url"] == address


def test_a_word_for_a_cron_expression_is_refused_with_the_expression():
    with pytest.raises(outlive.ConfigError, match=r"'@daily'.*, which is '0 0 \* \* \*'"):
        outlive.App().schedule("@daily")


def test_a_function_inside_another_needs_a_name():
    def inner() -> None: ...

    with pytest.raises(outlive.ConfigError, match=r"<locals>.inner has no name in its module.* give it a name=…"):
        outlive.App().task(inner)
    assert outlive.App().task(name="inner")(inner).name == "inner"


def test_a_source_declared_twice_and_differently_is_refused():
    app = outlive.App()
    assert app.source("shop", rate_limit_per_minute=1) == app.source("shop", rate_limit_per_minute=1)
    with pytest.raises(outlive.ConfigError, match="declared twice"):
        app.source("shop", rate_limit_per_minute=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_attempt": 3}, "unknown option max_attempt; did you mean max_attempts"),
        ({"xyz": 3}, "unknown option xyz; use one of name, was, queue"),
        (
            {"max_retries": 3},
            r"did you mean max_attempts\? \(it counts the first try too: max_retries=3 is max_attempts=4",
        ),
        ({"countdown": 3}, r"unknown option countdown; use task.using\(delay=…\)"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_crashes": True}, "max_crashes is True"),
        ({"max_losses": 30001}, "max_losses is 30001"),
        ({"recycle_after": 1.5}, "recycle_after is 1.5"),
        ({"recycle_after": "cleen"}, "recycle_after is 'cleen': it must be 'clean' or a whole number from 1 to 30000"),
        ({"timeout": "soon"}, "timeout is 'soon': it must be a duration"),
        ({"stall": -1}, "stall is -1: it must be a duration"),
        ({"memory": "much"}, "memory is 'much': it must be a size"),
        ({"name": ""}, "name is '': it must be 1 to 200 bytes"),
        ({"was": 3}, "was is 3: it must be a list of names"),
        ({"needs": 3}, "needs is 3: it must be a list of names"),
        ({"priority": 10}, "priority is 10: it must be a whole number from 0 to 9"),
        ({"queue": ""}, "queue is '': it must be 1 to 200 bytes"),
        ({"source": "a\nb"}, "source is .*: it must be 1 to 200 bytes"),
        ({"backoff": []}, "from 1 to 1000 steps"),
        ({"backoff": {1}}, "it must be a duration, a list of durations, or a function"),
        ({"retry_on": [ValueError]}, "retry_on is .*: it must be an exception class"),
        ({"fail_on": "ValueError"}, "fail_on is 'ValueError'"),
        ({"on_worker_death": "panic"}, "on_worker_death is 'panic': it must be retry or fail"),
        ({"quarantine_by": "name"}, "quarantine_by is 'name': it must be job or fingerprint"),
    ],
)
def test_a_task_option_that_makes_no_sense_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(outlive.ConfigError, match=sentence):
        outlive.App().task(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"qeue": "slow"}, "using has the unknown option qeue; did you mean queue"),
        ({"eta": "noon"}, r"using has the unknown option eta; did you mean run_at\? \(it needs a time zone\)"),
        ({"soft_time_limit": 3}, "unknown option soft_time_limit; did you mean timeout"),
        ({"id": "no-uuid"}, "id is 'no-uuid'"),
        ({"priority": 10}, "priority is 10: it must be a whole number from 0 to 9"),
        ({"priority": -1}, "priority is -1"),
        ({"priority": "5"}, "priority is '5'"),
        ({"delay": "later"}, "delay is 'later': it must be a duration"),
        ({"run_at": "tomorrow"}, "run_at is 'tomorrow'"),
        ({"run_at": datetime(2030, 1, 1)}, "time zone"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay and run_at are both given"),
        ({"on_conflict": "ignore"}, "on_conflict is 'ignore': it must be skip, raise or replace"),
        ({"on_worker_death": "panic"}, "on_worker_death is 'panic'"),
        ({"queue": " x"}, "queue is ' x': it must be 1 to 200 bytes"),
        ({"source": ""}, "source is '': it must be 1 to 200 bytes"),
        ({"dedupe_key": ""}, "dedupe_key is ''"),
        ({"concurrency": 2}, "concurrency is given without a concurrency_key: give the key whose jobs it limits"),
        ({"concurrency_key": None, "concurrency": 2}, "without a concurrency_key"),
        ({"concurrency_key": ""}, "concurrency_key is ''"),
        ({"concurrency_key": "ä" * 501}, "1 to 1000 bytes"),
        ({"concurrency_key": "a", "concurrency": 0}, "concurrency is 0: it must be a whole number from 1 to 1000"),
        ({"concurrency_key": "a", "concurrency": 1001}, "from 1 to 1000"),
        ({"dedupe_key": "ä" * 501}, "1 to 1000 bytes"),
        ({"dedupe_key": "a\0b"}, "dedupe_key contains a NUL"),
        ({"dedupe_key": "\ud800"}, "dedupe_key contains a lone surrogate"),
        ({"max_attempts": 0}, "max_attempts is 0"),
    ],
)
def test_an_option_of_a_job_that_makes_no_sense_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(outlive.ConfigError, match=sentence):
        add.using(**options)


def test_using_leaves_the_task_as_it_was_and_adds_up():
    slow = add.using(queue="slow").using(priority=1)
    assert (slow.job(1).request.queue, slow.job(1).request.priority) == ("slow", 1)
    assert (add.job(1).request.queue, add.job(1).request.priority) == ("default", None)
    assert slow.name == add.name


def test_a_parameter_may_have_any_name_even_self():
    assert take.job(self=1, name=2).request.args == b'{"name":2,"self":1}'
    assert take(self=1) == [(), {"self": 1}]


def test_the_largest_options_of_a_client_are_small() -> None:
    """The database refuses options of more than 8 KB; all that `using` takes has a limit of its own."""
    app = outlive.App()
    most: JobOptions = {
        "max_attempts": validation.MAX_COUNT,
        "max_crashes": validation.MAX_COUNT,
        "max_losses": validation.MAX_COUNT,
        "timeout": 1e9 / 3,
        "stall": 1e9 / 3,
        "memory": 10**15,
        "on_worker_death": "retry",
    }
    options = app.task(fetch.function).using(**most).job("x").request.options
    assert options is not None
    assert len(options) < 1000
    for name in ("max_attempts", "on_worker_death", "queue", "source", "dedupe_key"):
        with pytest.raises(outlive.ConfigError) as raised:
            fetch.using(**{name: "x" * 100_000})  # type: ignore[arg-type]
        assert len(str(raised.value)) < 500


def test_settings_in_code_hold_until_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setenv("OUTLIVE_MAX_CRASHES", "9")
    app = outlive.App("postgresql://shop@db/jobs", max_attempts=2, max_crashes=4, timeout_s="10m")
    config = app.config
    assert (config.max_attempts, config.max_crashes, config.timeout_s) == (2, 9, 600.0)
    assert config.database_url == "postgresql://shop@db/jobs"


def test_an_app_refuses_an_environment_that_names_another_database(monkeypatch):
    monkeypatch.setenv("OUTLIVE_DATABASE_URL", "postgresql://other:s3cret@db:5432/jobs")
    same = outlive.App("postgresql://shop:hidden@db/jobs")
    assert same.config.database_url == "postgresql://other:s3cret@db:5432/jobs"
    with pytest.raises(outlive.ConfigError) as raised:
        outlive.App("postgresql://shop:hidden@db:5433/jobs").config  # noqa: B018
    said = str(raised.value)
    assert "host=db port=5433 dbname=jobs" in said
    assert "host=db port=5432 dbname=jobs" in said
    assert "hidden" not in said
    assert "s3cret" not in said
