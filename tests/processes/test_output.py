"""What jobs say: it reaches the worker's log as it appears, stays with the attempt, and can be followed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from outlive.client.job import Job
from outlive.humanize import short_id
from outlive.states import State
from tests.driving.commands import Cli
from tests.driving.jobs import attempts, finished
from tests.driving.making import Queue
from tests.driving.workers import Worker
from tests.processes import talking
from tests.waiting import eventually

TALKING = "tests.processes.talking:app"


def said_by(worker: Worker, job: Job[Any]) -> list[str]:
    """The lines of a job in the worker's log, each with its level and without its time."""
    lines = re.findall(rf"Z (\w+) +outlive\.job: \[tests\.\S+ {short_id(job.id)} #1\] (.*)", worker.log())
    return [f"{level} {text}" for level, text in lines]


def output_of(queue: Queue, job: Job[Any]) -> str:
    (attempt,) = attempts(queue, job)
    return attempt.output or ""


def test_prints_and_log_records_reach_the_log_and_stay_with_the_attempt(start, queue):
    worker = start(target=TALKING)
    job, new = talking.talk.enqueue(), talking.talk_in_a_new_interpreter.enqueue()
    own, hostile = talking.configure_and_talk.enqueue(), talking.shout.enqueue()
    warm = [talking.talk_warmly.enqueue(word) for word in ("one", "", "two", "")]
    dead = talking.crash_while_talking.enqueue()
    for one in (job, new, own, hostile, *warm):
        assert finished(one) is State.SUCCEEDED
        worker.says(f"Job {short_id(one.id)} completed successfully")
    assert said_by(worker, job) == [
        "INFO printed",
        "INFO shop.parser: parsed 3 pages",
        "INFO to stderr",
        "ERROR shop.parser: page 4",
        "ERROR shop.parser: Traceback (most recent call last):",
        *[f"ERROR shop.parser: {line}" for line in TRACEBACK],
        "INFO from native code",
        "INFO from a program",
        "INFO unfinished",
    ]
    assert output_of(queue, job).splitlines() == [
        "printed",
        "INFO shop.parser: parsed 3 pages",
        "to stderr",
        "ERROR shop.parser: page 4",
        "Traceback (most recent call last):",
        *TRACEBACK,
        "from native code",
        "from a program",
        "unfinished",
    ]
    assert output_of(queue, new) == "INFO shop: in a new interpreter\n"
    assert output_of(queue, own) == "DEBUG of my own: heard\n"
    assert said_by(worker, own) == ["INFO DEBUG of my own: heard"]
    for one, word in zip(warm, ("one", "", "two", ""), strict=True):
        assert output_of(queue, one) == (f"printed {word}\nWARNING shop.parser: logged {word}\n" if word else "")
        assert said_by(worker, one) == ([f"INFO printed {word}", f"WARNING shop.parser: logged {word}"] if word else [])
    assert finished(dead) is State.QUARANTINED
    assert output_of(queue, dead) == "last words"
    shouted = said_by(worker, hostile)
    assert shouted[0] == ("INFO \\x1b[2J2030-01-01T00:00:00.000Z ERROR   outlive.worker: Dead worker detected\\r")
    assert shouted[1].endswith("\\x00binary")
    assert shouted[2] == "INFO \\x1eERROR"
    assert shouted[4:6] == ["INFO shop.parser: first", "INFO shop.parser: second \\x1b[31m postgresql://me:***@host/db"]
    assert 60_000 < sum(map(len, shouted[6:])) < 200_000
    assert f"lines of job {short_id(hostile.id)} were left out" in worker.log()
    assert "\x1b" not in worker.log()


TRACEBACK = [
    f'  File "{talking.__file__}", line {talking.talk.function.__code__.co_firstlineno + 7}, in talk',
    '    raise ValueError("no price")',
    "ValueError: no price",
]


def test_json_lines_of_jobs_have_fields_and_a_flood_is_counted(start, queue):
    worker = start(target=TALKING, log_format="json", job_log_level="warning")
    job, flood, failing = talking.talk.enqueue(), talking.flood.enqueue(20_000), talking.fail.enqueue()
    worker.says(f"Job {short_id(failing.id)} failed with code 1")
    for one in (job, flood):
        assert finished(one) is State.SUCCEEDED
        worker.says(f"Job {short_id(one.id)} completed successfully")
    lines = [json.loads(line) for line in worker.log().splitlines()]
    worker_id = str(queue.value("select id from outlive.workers"))
    (record,) = [line for line in lines if line.get("stream") == "log"]
    assert {key: record[key] for key in ("job_id", "task", "attempt", "level", "logger")} == {
        "job_id": str(job.id),
        "task": talking.talk.name,
        "attempt": 1,
        "level": "error",
        "logger": "shop.parser",
    }
    assert record["message"] == "page 4"
    assert record["exception"].startswith("Traceback (most recent")
    assert record["exception"].endswith("ValueError: no price")
    printed = [line for line in lines if line.get("stream") == "output"]
    assert {line["level"] for line in printed} == {"info"}
    assert "printed" in [line["message"] for line in printed]
    logged = [line for line in printed if line["job_id"] == str(flood.id)]
    left_out = sum(line.get("left_out", 0) for line in lines)
    assert len(logged) + left_out == 20_000
    assert len(logged) <= 200 * 8
    (failed,) = [line for line in lines if line.get("outcome") == "failed"]
    (done,) = [line for line in lines if line.get("outcome") == "succeeded" and line["job_id"] == str(job.id)]
    assert (failed["job_id"], failed["state"]) == (str(failing.id), "retryable")
    assert datetime.fromisoformat(failed["next_try"]) > datetime.fromisoformat(failed["time"]) + timedelta(seconds=20)
    assert "retry at" in failed["message"]
    assert (done["state"], done["next_try"]) == ("succeeded", None)
    for line in (failed, done):
        assert line["worker"] == worker_id
        assert 0 <= line["duration_s"] < 10
        assert {"task", "attempt"} <= line.keys()
    kept = output_of(queue, flood)
    assert kept.startswith("[1")
    assert kept.endswith("line 19998\nline 19999\n")


@pytest.mark.parametrize(
    ("levels", "kept", "logged"),
    [
        ({"log_level": "debug"}, False, False),
        ({"job_log_level": "debug"}, True, False),
        ({"job_log_level": "debug", "log_level": "debug"}, True, True),
    ],
)
def test_a_debug_record_is_kept_by_the_level_of_jobs_and_logged_by_that_of_the_worker_too(
    start, queue, levels, kept, logged
):
    worker = start(target=TALKING, **levels)
    job = talking.talk_in_detail.enqueue()
    assert finished(job) is State.SUCCEEDED
    worker.says(f"Job {short_id(job.id)} completed successfully")
    assert ("in detail" in output_of(queue, job), "in detail" in worker.log()) == (kept, logged)
    assert "in short" in worker.log()


@pytest.mark.parametrize(
    ("level", "own", "of_jobs"),
    [("info", True, True), ("info,outlive.worker=warning", False, True), ("info, outlive.job=warning", True, False)],
)
def test_the_lines_of_the_worker_and_those_of_jobs_have_a_level_each(start, queue, level, own, of_jobs):
    worker = start(target=TALKING, log_level=level, wait=False)
    job, failing = talking.talk_in_detail.enqueue(), talking.fail_for_good.enqueue()
    assert finished(job) is State.SUCCEEDED
    worker.says(f"ERROR   Job {short_id(failing.id)}")
    worker.send(signal.SIGTERM)
    assert worker.process.wait(20) == 0
    assert (f"Job {short_id(job.id)} completed successfully" in worker.log()) is own
    assert (f"{short_id(job.id)} #1] shop.parser: in short" in worker.log()) is of_jobs
    assert "in short" in output_of(queue, job)


def test_json_lines_have_the_fields_of_a_record_and_the_traceback_of_a_failure_for_good(start, queue):
    worker = start(target=TALKING, log_format="json")
    job, failing, deciding = (
        talking.talk_with_fields.enqueue(),
        talking.fail_for_good.enqueue(),
        talking.decide.enqueue("retry"),
    )
    assert [finished(one) for one in (job, failing, deciding)] == [State.SUCCEEDED, State.FAILED, State.FAILED]
    worker.says(f"Job {short_id(job.id)} completed successfully")
    eventually(lambda: worker.log().count('"level":"error"') == 2, what="both failures are logged")
    lines = [json.loads(line) for line in worker.log().splitlines()]
    records = [(line["message"], line.get("extra")) for line in lines if line.get("stream") == "log"]
    sold = {"order": 7, "lines": [{"at": "/shop", "url": "postgresql://me:***@host/db"}]}
    assert records[:3] == [("sold", sold), ("too much", None), ("stubborn", None)]
    assert [message for message, _ in records[3:]] == ["forged"] * 4
    assert output_of(queue, job).startswith("INFO shop.parser: sold\nINFO shop.parser: too much\n")
    ends: dict[str, list[dict[str, Any]]] = {str(one.id): [] for one in (failing, deciding)}
    for line in lines:
        if line.get("outcome") == "failed":
            ends[line["job_id"]].append(line)
    for retried, failed in ends.values():
        assert (retried["level"], retried["attempt"], "exception" in retried) == ("warning", 1, False)
        assert (failed["level"], failed["attempt"], failed["state"]) == ("error", 2, "failed")
    [(_, failed), (_, decided)] = ends.values()
    assert failed["exception"].startswith("Traceback (most recent call last):\n")
    assert failed["exception"].splitlines()[1].endswith(", in fail_for_good")
    assert decided["error"] == "Retry: the page is empty", "another exception led to it"
    assert decided["exception"].count("ValueError: no price") == decided["exception"].count("in read_price") == 1
    assert "secret" not in worker.log()


def test_a_retry_is_a_line_and_a_failure_for_good_an_error_with_its_traceback_as_text(start):
    worker = start(target=TALKING)
    job = talking.fail_for_good.enqueue()
    assert finished(job) is State.FAILED
    worker.says("ERROR   Job ")
    lines = worker.log().splitlines()
    said = " Job {} failed with code 1: ValueError: no price at postgresql://me:***@host/db 2030-01-01T"
    [retried, failed] = [n for n, line in enumerate(lines) if said.format(short_id(job.id)) in line]
    assert " WARNING " in lines[retried]
    assert " ERROR " in lines[failed]
    [began] = [n for n, line in enumerate(lines) if line == "    Traceback (most recent call last):"]
    assert began == failed + 1
    ended = next(n for n, line in enumerate(lines) if line.startswith("    ValueError: no price at "))
    assert lines[began + 1].endswith(", in fail_for_good"), "the frames of outlive come first"
    assert lines[ended] == "    ValueError: no price at postgresql://me:***@host/db"
    assert lines[ended + 1].startswith("    2030-01-01T")


def test_a_job_that_fails_for_good_as_the_last_one_of_a_worker_that_stops_is_an_error_with_its_traceback(
    start, tmp_path
):
    worker = start(target=TALKING)
    job = talking.fail_when.enqueue(str(tmp_path / "over"))
    worker.says("waiting")
    worker.send(signal.SIGTERM)
    worker.says(" stops: ")
    (tmp_path / "over").touch()
    assert worker.process.wait(20) == 0
    lines = worker.log().splitlines()
    [failed] = [n for n, line in enumerate(lines) if f"Job {short_id(job.id)} failed with code 1" in line]
    assert lines[failed].split()[1] == "ERROR"
    assert lines[failed + 1] == "    Traceback (most recent call last):"


def test_a_decision_that_another_exception_led_to_fails_for_good_with_the_traceback_of_both(start, queue, database_url):
    worker = start(target=TALKING)
    jobs = {how: talking.decide.enqueue(how) for how in ("retry", "fail", "fail by itself", "hide")}
    for job in jobs.values():
        assert finished(job) is State.FAILED
        worker.says(f"ERROR   Job {short_id(job.id)}")
    lines = worker.log().splitlines()
    for how, job in jobs.items():
        said = [n for n, line in enumerate(lines) if f"Job {short_id(job.id)} failed with code 1" in line]
        levels = [lines[n].split()[1] for n in said]
        assert levels == (["WARNING", "ERROR"] if how == "retry" else ["ERROR"])
        shown = Cli(database_url)("show", str(job.id), "--full").out
        follows = lines[said[-1] + 1 : said[-1] + 2] == ["    Traceback (most recent call last):"]
        assert follows == ("in read_price" in shown) == (how in ("retry", "fail")), how
    assert [worker.log().count(f"in {function}\n") for function in ("read_price", "decide")] == [2, 4]
    assert "outlive.errors.Retry: the page is empty" in worker.log()


def test_json_lines_of_a_quarantine_and_a_dead_worker_say_which_job_task_and_worker(start, queue, tmp_path):
    dead, other = start(target=TALKING, slots=1), start(target=TALKING, slots=1, log_format="json")
    other.send(signal.SIGSTOP)  # So that the first one takes the job.
    lost = talking.talk_until.enqueue(str(tmp_path / "over"))
    eventually(lambda: lost.status() is State.RUNNING, what="the job runs")
    dead.kill()
    (tmp_path / "over").touch()
    other.send(signal.SIGCONT)
    assert finished(lost) is State.SUCCEEDED
    killer = talking.crash_while_talking.enqueue()
    other.says("is quarantined")
    lines = [json.loads(line) for line in other.log().splitlines()]
    [death] = [line for line in lines if "Dead worker detected" in line["message"]]
    assert (death["level"], death["worker"]) == ("error", dead.id)
    [held] = [line for line in lines if ", held by " in line["message"]]
    told = (str(lost.id), talking.talk_until.name, dead.id, "pending")
    assert tuple(held[key] for key in ("job_id", "task", "worker", "state")) == told
    [quarantined] = [line for line in lines if "is quarantined" in line["message"]]
    about = (str(killer.id), talking.crash_while_talking.name, other.id)
    assert tuple(quarantined[key] for key in ("job_id", "task", "worker")) == about


def test_lines_are_in_the_order_of_their_times_and_short(start):
    worker = start(target=TALKING, slots=2)
    failing = talking.fail.enqueue()
    jobs = [talking.talk_warmly.enqueue(str(n)) for n in range(200)]
    for job in jobs:
        assert finished(job) is State.SUCCEEDED
    worker.says(f"Job {short_id(failing.id)} failed with code 1")
    for job in jobs:
        worker.says(f"Job {short_id(job.id)} completed")
    lines = worker.log().splitlines()
    times = [line.split(" ", 1)[0] for line in lines]
    assert times == sorted(times)
    about_jobs = [line for line in lines if " completed successfully" in line or "outlive.job:" in line]
    of_each = [[line for line in about_jobs if short_id(job.id) in line] for job in jobs]
    assert len(about_jobs) == 3 * 200, [lines for lines in of_each if len(lines) != 3]
    assert max(len(line.replace(talking.talk_warmly.name, "shop.fetch")) for line in about_jobs) <= 120


def test_the_lines_of_failures_are_short_and_their_stacks_begin_with_the_job(start, queue):
    worker = start(target=TALKING)
    jobs = [task.enqueue() for task in (talking.hang, talking.fail, talking.crash_while_talking)]
    for job in jobs:
        worker.says(f"ERROR   Job {short_id(job.id)}" if job is not jobs[1] else f"WARNING Job {short_id(job.id)}")
    lines = worker.log().splitlines()
    names = "|".join(re.escape(task.name) for task in (talking.hang, talking.fail, talking.crash_while_talking))
    ends = [re.sub(names, "shop.fetch", line) for line in lines if re.search("Job .*(timed_out|failed with)", line)]
    assert len(ends) == 4
    assert max(map(len, ends)) <= 145, ends
    frames = [line for line in lines if line.startswith('      File "')]
    assert sorted(line.rpartition(" in ")[2] for line in frames) == ["crash_while_talking", "hang"]
    assert all("/outlive/child/" not in (attempts(queue, job)[-1].stack or "/outlive/child/") for job in jobs)


def test_a_running_job_is_followed_to_its_end(start, queue, database_url, tmp_path):
    start(target=TALKING)
    job = talking.talk_until.enqueue(str(tmp_path / "over"))
    following = ["-m", "outlive", "logs", str(job.id), "--follow"]
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": database_url}
    with subprocess.Popen([sys.executable, *following], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout
        heard = [process.stdout.readline() for _ in range(20)]
        (tmp_path / "said").touch()  # Its job says so at once.
        asked = time.monotonic()
        while "said at last" not in heard[-1]:
            heard.append(process.stdout.readline())
        assert time.monotonic() - asked < 1.5
        (tmp_path / "over").touch()
        heard += process.stdout.readlines()
        assert process.wait(10) == 0
    assert finished(job) is State.SUCCEEDED
    assert "".join(heard) == output_of(queue, job)
    assert heard[:2] == ["begun\n", "INFO shop.parser: waiting 1\n"]
    assert heard[-1] == "over\n"
