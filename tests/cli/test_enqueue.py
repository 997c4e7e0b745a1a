"""The command enqueue: it imports the app, finds the task and checks the arguments, or fails with one line."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.driving.commands import Cli, ended

APP = """
from datetime import date
from decimal import Decimal

import outlive

app = outlive.App()
not_an_app = 1


@app.task
def fetch(url: str, tries: int = 1) -> None: ...


@app.task(queue="slow")
def parse(document: str, /) -> None: ...


@app.task
def pay(amount: Decimal, due: date | None = None) -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes a directory with an app in it the current one."""
    (tmp_path / "shop_tasks.py").write_text(APP)
    (tmp_path / "shop_broken.py").write_text("import outlive\n1 / 0\n")
    (tmp_path / "shop_lacking.py").write_text("import no_such_thing_at_all\n")
    refused = "from django.core.exceptions import *; raise AppRegistryNotReady('apps are missing')"
    (tmp_path / "shop_site.py").write_text(refused)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("shop")
def test_a_task_is_enqueued_with_its_options(cli):
    words = ("--queue", "fast", "--source", "example.org", "--priority", 1, "--delay", "5m", "--dedupe-key", "k")
    made = cli("enqueue", "shop_tasks:app", "shop_tasks.fetch", '{"url": "https://x"}', *words, "--json").json
    assert made["enqueued"] is True
    assert made["task"] == "shop_tasks.fetch"
    shown = cli("show", made["id"], "--json").json
    assert (shown["queue"], shown["source"], shown["priority"], shown["state"]) == ("fast", "example.org", 1, "pending")
    assert shown["args"] == {"url": "https://x"}
    assert shown["ready_at"] > shown["created_at"]


@pytest.mark.usefixtures("shop")
def test_a_job_is_enqueued_after_others(cli):
    words = ("enqueue", "shop_tasks:app", "fetch", '["x"]', "--json")
    first, second = (cli(*words).json["id"] for _ in range(2))
    job = cli(*words, "--after", first, "--after", second, "--on-failure", "cancel").json["id"]
    shown = cli("show", job, "--json").json
    assert (shown["state"], shown["waits_for"]["jobs"]) == ("blocked", 2)
    cli("cancel", second)
    assert cli("show", job, "--json").json["state"] == "cancelled"
    refused = cli(*words, "--after", first, "--on-failure", "panic")
    assert "on_failure is 'panic': it must be block, proceed or cancel" in refused.err


@pytest.mark.usefixtures("shop")
def test_a_job_is_enqueued_with_a_concurrency_key(cli):
    words = ("--concurrency-key", "customer-7", "--concurrency", 2)
    made = cli("enqueue", "shop_tasks:app", "fetch", '{"url": "https://x"}', *words, "--json").json
    assert "waits for a slot of the key customer-7 (0 of 2 taken)" in cli("show", made["id"]).out


@pytest.mark.usefixtures("shop")
def test_a_functions_name_is_enough_and_an_array_is_positional(cli):
    ran = cli("enqueue", "shop_tasks", "fetch", '["https://x", 3]')
    id, _, rest = ran.out.partition(" ")
    assert rest == "is enqueued\n"
    assert cli("show", id, "--json").json["args"] == {"url": "https://x", "tries": 3}


@pytest.mark.usefixtures("shop")
def test_arguments_are_read_as_the_task_is_annotated(cli):
    made = cli("enqueue", "shop_tasks", "pay", '{"due": "2030-01-31", "amount": 1.10}', "--json").json
    assert cli("show", made["id"], "--json").json["args"] == {"amount": "1.10", "due": "2030-01-31"}


@pytest.mark.usefixtures("shop")
def test_long_arguments_come_from_standard_input(cli):
    made = cli("enqueue", "shop_tasks:app", "fetch", "-", "--json", input=f'["{"x" * 200_000}"]').json
    assert cli("show", made["id"], "--json").json["args"] == {"url": "x" * 200_000}


@pytest.mark.usefixtures("shop")
def test_a_dedupe_key_that_is_taken_follows_on_conflict(cli):
    words = ("enqueue", "shop_tasks:app", "fetch", '["x"]', "--dedupe-key", "k")
    first = cli(*words, "--json").json["id"]
    assert cli(*words).out == f"{first} already has this dedupe key: nothing was enqueued\n"
    refused = cli(*words, "--on-conflict", "raise")
    assert refused.code == 1
    assert first in refused.err
    assert cli(*words, "--on-conflict", "replace", "--json").json["enqueued"] is True
    assert cli("show", first, "--json").json["state"] == "cancelled"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("shop_tsks:app", "fetch"), 3, "there is no module shop_tsks: tried {here} (the current directory) and"),
        (("shop_tasks.deep:app", "fetch"), 3, "there is no module shop_tasks.deep"),
        (("shop_tasks:ap", "fetch"), 3, "the module shop_tasks has nothing named ap: its apps are app"),
        (("shop_tasks:not_an_app", "fetch"), 3, "shop_tasks:not_an_app is of type int, not an outlive.App"),
        (
            ("shop_broken:app", "fetch"),
            3,
            "outlive: shop_broken.py, line 2: ZeroDivisionError: division by zero (importing shop_broken)\nTraceback",
        ),
        (
            ("shop_lacking:app", "fetch"),
            3,
            "outlive: shop_lacking.py, line 1: ModuleNotFoundError: No module named 'no_such_thing_at_all' (importing",
        ),
        (
            ("shop_site:app", "fetch"),
            3,
            "apps are missing (importing shop_site); for a Django project, run `manage.py outlive_worker`",
        ),
        (("./shop_tasks.py:app", "fetch"), 3, "is not the name of a module: write it like shop_tasks:app"),
        (("shop_tasks:app", "fetsh"), 2, "has no task 'fetsh'; did you mean shop_tasks.fetch?"),
        (
            ("shop_tasks:app", "zzz"),
            2,
            "has no task 'zzz'; use one of shop_tasks.fetch, shop_tasks.parse, shop_tasks.pay",
        ),
        (("shop_tasks:app", "fetch", "{}"), 2, "missing a required argument: 'url'"),
        (("shop_tasks:app", "fetch", '{"url": "x", "trys": 2}'), 2, "unexpected keyword argument 'trys'"),
        (("shop_tasks:app", "fetch", "[1, 2, 3]"), 2, "too many positional arguments"),
        (("shop_tasks:app", "fetch", '{"url": 7}'), 2, "outlive: argument url: expected str, got int\n"),
        (("shop_tasks:app", "pay", '{"amount": "1", "due": "soon"}'), 2, "argument due: invalid RFC3339 encoded date"),
        (("shop_tasks:app", "fetch", "url=x"), 2, "the arguments are not JSON"),
        (("shop_tasks:app", "fetch", '"x"'), 2, "must be a JSON object or array"),
        (("shop_tasks:app", "fetch", '["x"]', "--priority", "12"), 2, "priority"),
        (("shop_tasks:app", "fetch", '["x"]', "--delay", "soon"), 2, "it must be a duration"),
        (("shop_tasks:app", "fetch", '["x"]', "--on-conflict", "fight"), 2, "it must be skip, raise or replace"),
    ],
)
def test_a_wrong_command_gets_an_error_of_one_line_and_enqueues_nothing(cli, shop, words, code, said):
    ran = cli("enqueue", *words)
    assert ran.code == code, ran
    assert said.format(here=shop) in ran.err
    assert f"first {shop}" not in ran.err
    assert ran.err.count("\n") == 1 or "(importing" in said
    assert cli("jobs", "--json").json == []


def test_a_real_process_finds_the_app_in_its_current_directory(cli, shop):
    ran = ended(cli.process("enqueue", "shop_tasks:app", "parse", '["x"]', "--json", PYTHONSAFEPATH="1"))
    assert ran.json["task"] == "shop_tasks.parse"
    assert os.getcwd() == str(shop)


@pytest.mark.usefixtures("shop")
def test_a_role_that_may_not_enqueue_is_told_so(database_url):
    limited = Cli(make_conninfo(database_url, options="-c role=outlive_viewer"))
    ran = limited("enqueue", "shop_tasks:app", "fetch", '["x"]')
    assert ran.code == 1
    refused = "the database refused: permission denied for function enqueue_plain"
    assert (
        ran.err
        == f"outlive: {refused}; run this as a member of outlive_worker (to enqueue, outlive_enqueue is enough)\n"
    )


@pytest.mark.usefixtures("shop")
def test_an_app_that_names_its_database_is_enqueued_there(cli, database_url):
    Path("shop_named.py").write_text(APP.replace("App()", f"App({database_url!r})"))
    made = Cli(None)("enqueue", "shop_named:app", "fetch", '["x"]', "--json").json
    assert [row["id"] for row in cli("jobs", "--json").json] == [made["id"]]
