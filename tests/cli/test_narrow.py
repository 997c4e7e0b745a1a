"""Tables in 80 columns: the names of things are whole, and what has no room is left out."""

import msgspec
import pytest

from outlive import store
from outlive.humanize import short_id
from outlive.model import MemoryCourse
from outlive.states import Outcome
from tests.driving.commands import Cli

WIDTH = 80


@pytest.fixture
def narrow(database_url: str) -> Cli:
    return Cli(database_url, columns=WIDTH)


def lines_of(cli: Cli, *words: str) -> list[str]:
    lines = cli(*words).out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    return lines


def test_stats_of_all_states_have_whole_names_and_count_what_is_left_out(narrow, queue):
    task = "shop.refresh"
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED):
        queue.make_finished(outcome, task=task)
    queue.make_quarantined(task=task)
    queue.run_job(queue.make(task), Outcome.FAILED)
    queue.claim_job(queue.make(task))
    needed = queue.make(task)
    queue.make(task, links=msgspec.json.encode({"after": [needed]}))
    queue.make_many(20, task=task, queue="nightly")
    text = "\n".join(lines_of(narrow, "stats"))
    assert text.count(task) == 2
    assert "nightly" in text
    for state in ("pending", "running", "succeeded", "failed", "cancelled", "quarantined", "retryable", "blocked"):
        assert state in text
    assert "no room for columns of 1 " in text


def test_schedules_have_whole_names(narrow, queue):
    name, task = "refresh-exchange-rates", "shop.rates.refresh_rates"
    made = {"task": task, "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin"}
    queue.run(store.add_schedule(name, made))
    _, line, below = lines_of(narrow, "schedules")
    assert line.startswith(f"{name}  ")
    assert "0 6 * * MON-FRI Europe/Berlin" in line
    assert line.rstrip().endswith(" on")
    assert below.rstrip() == task


def test_jobs_that_failed_have_the_beginning_of_their_error(narrow, queue):
    job = queue.make("shop.charge")
    queue.run_job(job, Outcome.FAILED, error="ValueError: the card of order 63 was declined", final=True)
    _, line, below = lines_of(narrow, "jobs", "--state", "failed")
    assert line.split()[:2] == [short_id(job), "shop.charge"]
    assert below.strip() == "ValueError: the card of order 63 wa…"
    assert str(job) in narrow("show", short_id(job)).out


def test_the_memory_of_an_attempt_is_one_line(narrow, queue):
    course = MemoryCourse(512_000_000, [n / 3 for n in range(60)], [n * 5_000_000 for n in range(60)])
    job = queue.make()
    queue.run_job(job, Outcome.CRASHED, memory=msgspec.json.encode(course))
    (line,) = [line for line in lines_of(narrow, "show", str(job)) if "memory" in line]
    assert line.startswith("  memory ▁")
    assert line.rstrip().endswith("295 MB in 19.7 s, limit 512 MB")
