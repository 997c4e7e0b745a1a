"""logs and show: what a job has said."""

import json
from uuid import UUID

import pytest

from outlive.model import Ended
from outlive.states import Outcome
from tests.driving.making import Queue, new_worker

LONG = "[2,290 earlier lines are not kept]\n" + "".join(f"line {n}\n" for n in range(2291, 2311))


@pytest.fixture
def job(queue: Queue) -> UUID:
    """A job that has failed once and succeeded then."""
    job = queue.make()
    first = queue.claim_job(job)
    queue.end(Ended(first.token, Outcome.FAILED, error="why", output="first \x1b[31mtry\x1b[0m\n", after_s=0.0))
    queue.end(Ended(queue.claim_job(job).token, output=LONG))
    return job


def test_show_says_how_many_lines_there_were(cli, job):
    shown = cli("show", job).out
    assert "output: last 12 lines of 2,310" in shown
    assert "line 2299\n" in shown
    assert "line 2298\n" not in shown
    assert "output\n" in shown


def test_logs_prints_the_newest_attempt_or_another(cli, job):
    newest = cli("logs", job).out.splitlines()
    assert newest[:2] == ["[2,290 lines are not kept]", "line 2291"]
    assert newest[-1] == "line 2310"
    assert cli("logs", job, "--attempt", 1).out == "first try\n"


def test_logs_of_a_finished_job_are_followed_through_all_attempts(cli, job):
    assert cli("logs", job, "--follow", "--attempt", 1).out == "first try\n"
    assert cli("logs", job, "--follow").out == cli("logs", job).out


def test_logs_as_json_have_one_object_for_each_line(cli, job):
    lines = [json.loads(line) for line in cli("logs", job, "--json").out.splitlines()]
    assert lines[0] == {"attempt": 2, "line": 2291, "text": "line 2291"}
    assert len(lines) == 20
    (first,) = cli("logs", job, "--json", "--attempt", 1).out.splitlines()
    assert json.loads(first)["text"] == "first \x1b[31mtry\x1b[0m"
    assert "\x1b" not in first


def test_logs_says_what_is_not_there(cli, queue, job):
    assert "there is no job" in cli("logs", new_worker()).err
    assert f"job {job} has no attempt 3" in cli("logs", job, "--attempt", 3).err
    assert f"job {job} has no attempt 3" in cli("logs", job, "--attempt", 3, "--follow").err
    assert cli("logs", queue.make()).out == ""
