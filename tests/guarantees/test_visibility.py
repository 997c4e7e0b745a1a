"""Visibility: views, commands and log lines for operators."""

import json
import re
import subprocess
import sys
from datetime import timedelta

from outlive import State, store
from outlive.client.task import Task
from outlive.humanize import short_id
from outlive.states import Outcome
from tests import faults
from tests.driving.jobs import finished
from tests.driving.making import NOON
from tests.driving.workers import ROOT

AddTask = Task[[int, int], int, int]


EXPECTED = {
    "job_states": "id task queue source status attempt failures crashes losses next_retry_at completed_at "
    "locked_by locked_at heartbeat_at time_since_heartbeat error_message",
    "recent_jobs": "id task status created_at error_message",
    "stuck_jobs": "id task locked_by locked_at heartbeat_at time_since_heartbeat",
    "worker_states": "id name hostname pid state last_seen slots running",
    "killers": "id task crashes losses signal exit_code peak_memory_bytes output stack killed_on last_kill_at",
    "queue_states": "name paused waiting running quarantined",
    "schedule_states": "name task cron every_s timezone paused next_at last_tick last_job last_state trouble",
    "source_health": "name enabled rate_limit_per_minute failure_streak last_success_at last_failure_at paused_until",
}


def test_every_view_has_the_columns_that_operators_expect(hand):
    columns = "select attname from pg_attribute where attnum > 0 and attrelid = to_regclass(%s)"
    for view, expected in EXPECTED.items():
        found = {name for (name,) in hand.rows(columns, f"outlive.{view}")}
        assert set(expected.split()) - found == set(), view


def test_a_heartbeat_that_is_missing_counts_as_stuck(task, hand):
    job = task.enqueue(1, 2)
    hand.at(NOON)
    (claimed,) = hand.claim()
    hand.at(NOON, later_s=299)
    hand.connection.run(store.renew(hand.id, [claimed.token]))
    hand.at(NOON, later_s=598)
    assert hand.connection.run(store.list_stuck()) == []
    hand.at(NOON, later_s=600)
    assert hand.rows("select id, time_since_heartbeat from outlive.stuck_jobs") == [(job.id, timedelta(seconds=301))]
    (stuck,) = hand.connection.run(store.list_stuck())
    assert (stuck["id"], stuck["time_since_heartbeat_s"]) == (job.id, 301)


def test_one_look_shows_recent_jobs_and_how_they_stand(task, hand):
    failed = task.enqueue(1, 2)
    hand.run(Outcome.FAILED, error="ValueError: no", final=True)
    running = task.enqueue(3, 4)
    hand.claim()
    waiting = task.enqueue(5, 6)
    seen = hand.rows("select id, status, error_message from outlive.recent_jobs")
    assert set(seen) == {
        (waiting.id, "pending", None),
        (running.id, "running", None),
        (failed.id, "failed", "ValueError: no"),
    }
    assert seen[-1][0] == min(failed.id, running.id, waiting.id)


def test_one_command_shows_one_jobs_whole_life(start, database_url):
    start(name="crawler-1")
    job = faults.third_time_lucky.enqueue()
    assert job.result(timeout=20) == "lucky"
    command = [sys.executable, "-m", "outlive", "show", str(job.id), "--json", "--database-url", database_url]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert (shown["state"], shown["result"], shown["failures"], shown["crashes"]) == ("succeeded", "lucky", 1, 1)
    assert (shown["progress"]["current"], shown["progress"]["message"]) == (1, "lucky")
    first, second, third = shown["attempts"]
    assert [one["outcome"] for one in shown["attempts"]] == ["failed", "crashed", "succeeded"]
    assert first["error"] == "ValueError: not the first time"
    assert "in third_time_lucky" in first["stack"]
    assert second["signal"] == "SIGSEGV"
    assert "in third_time_lucky" in second["stack"]
    for n, one in enumerate(shown["attempts"], start=1):
        assert one["attempt"] == n
        assert one["worker"] == "crawler-1"
        assert one["output"] == f"this is attempt {n}\n"
        assert one["peak_memory_bytes"] > 1_000_000
        assert one["cpu_s"] >= 0
        assert one["started_at"] < one["ended_at"]
    assert third["error"] is None


def test_the_log_has_the_lines_that_operators_grep_for(start):
    worker = start(log_level="debug")
    assert f"Worker {worker.id} started" in worker.log()
    well = faults.add.enqueue(1, 2)
    raised = faults.raise_error.using(max_attempts=1).enqueue()
    exited = faults.exit_with.using(max_crashes=1).enqueue(7)
    killed = faults.die_by.using(max_crashes=1).enqueue("SIGSEGV")
    late = faults.hang.enqueue()
    finished(well, State.SUCCEEDED)
    for job, state in ((raised, State.FAILED), (exited, State.QUARANTINED), (killed, State.QUARANTINED)):
        finished(job, state)
    finished(late, State.FAILED)
    worker.says(f"Job {short_id(late.id)} timed_out: it ran for more")
    for job in (raised, exited, killed):
        worker.says(f"Job {short_id(job.id)} failed with code")
    log = worker.log()
    assert all(f"Starting job {short_id(job.id)}" in log for job in (well, raised, exited, killed, late))
    assert re.search(rf"Job {short_id(well.id)} completed successfully \(tests\.faults\.add, \d\.\d{{3}} s\)", log)
    assert f"Job {short_id(raised.id)} failed with code 1" in log
    assert f"Job {short_id(exited.id)} failed with code 7" in log
    assert f"Job {short_id(killed.id)} failed with code -11" in log
    assert f"Job {short_id(late.id)} timed out" in log
    assert re.search(rf"ERROR.* Job {short_id(late.id)} timed_out: it ran for more", log)
    page = (ROOT / "docs/how-to/logs.md").read_text()
    *listed, dead = page.partition("## Lines to look for\n```text\n")[2].partition("```")[0].splitlines()
    assert dead == "Dead worker detected: <id>"  # Other tests wait for that one.
    for line in listed:
        assert re.search(re.escape(line).replace("<id>", r"[0-9a-f-]{18,36}").replace("<n>", r"-?\d+"), log), line


def test_by_default_the_log_has_one_line_for_each_job_at_its_end(start):
    worker = start(log_format="json")
    jobs = [faults.add.enqueue(n, n) for n in range(3)]
    for job in jobs:
        finished(job, State.SUCCEEDED)
        worker.says(f"Job {short_id(job.id)} completed successfully")
    lines = [json.loads(line) for line in worker.log().splitlines()]
    for job in jobs:
        [line] = [line for line in lines if line.get("job_id") == str(job.id)]
        assert (line["task"], line["attempt"]) == ("tests.faults.add", 1)
        assert (line["level"], line["outcome"]) == ("info", "succeeded")
        assert 0 <= line["duration_s"] < 10
