"""Records of jobs if the app has given handlers of its own to `logging`, and the level of each line in the log."""

import json
from typing import Any

from outlive import App
from outlive.client.job import Job
from outlive.humanize import short_id
from outlive.states import State
from tests.driving.jobs import attempts, finished
from tests.driving.workers import Worker
from tests.processes import masked, printing, talking


def said_in(worker: Worker, job: Job[Any]) -> list[dict[str, Any]]:
    """What a job has said, as the worker's log has it."""
    assert finished(job) is State.SUCCEEDED
    worker.says(f"Job {short_id(job.id)} completed successfully")
    lines = [json.loads(line) for line in worker.log().splitlines()]
    return [line for line in lines if line.get("job_id") == str(job.id) and "stream" in line]


def in_short(lines: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [tuple(line[key] for key in ("level", "logger", "message", "stream")) for line in lines]


def test_a_record_keeps_its_level_and_logger_if_django_writes_it_to_stderr(
    start, queue, database_url, tmp_path, monkeypatch
):
    site = tmp_path / "site.log"
    monkeypatch.setenv("SITE_LOG", str(site))
    worker = start(target="tests.processes.sited:app", log_format="json")
    job = App(database_url).get_job(queue.make("tests.processes.sited.talk", args=b'{"order": 7}'))
    lines = said_in(worker, job)
    assert in_short(lines) == [
        ("info", "shop", "sold", "log"),
        ("warning", "audit", "paid", "log"),
        ("error", "django.request", "Not Found", "log"),
        ("error", "root", "order 7", "log"),
    ]
    assert lines[0]["extra"] == {"order": 7}
    assert lines[3]["exception"].endswith("ValueError: no price")
    assert site.read_text().startswith("sold\ntea\nNot Found\norder 7\nTraceback")


def test_an_event_of_structlog_and_a_line_of_rich_keep_their_level_and_their_fields(start, queue, database_url):
    worker = start(target="tests.processes.structured:app", log_format="json")
    job = App(database_url).get_job(queue.make("tests.processes.structured.talk", args=b'{"order": 7}'))
    lines = said_in(worker, job)
    assert in_short(lines) == [
        ("info", "shop", "sold 100 %", "log"),
        ("warning", "rich", "paid", "log"),
        ("error", "shop", "failed", "log"),
    ]
    assert lines[0]["extra"]["order"] == 7
    assert lines[2]["exception"].endswith("ValueError: no price")
    assert "exception" not in lines[2]["extra"]


def test_an_event_of_structlog_has_its_exception_however_that_is_given(start, queue, database_url):
    worker = start(target="tests.processes.structured:app", log_format="json")
    lines = said_in(worker, App(database_url).get_job(queue.make("tests.processes.structured.talk_of_errors")))
    assert [line["message"] for line in lines] == ["itself", "current", "one", "later"]
    assert all(line["exception"].endswith("ValueError: no price") for line in lines)


def test_what_a_formatter_of_the_app_masks_is_masked_in_the_log_and_with_the_attempt(start, queue):
    worker = start(target="tests.processes.masked:app", log_format="json")
    job = masked.talk.enqueue()
    lines = said_in(worker, job)
    assert in_short(lines) == [
        ("info", "shop", "sold", "log"),
        ("warning", "shop", "paid", "log"),
        ("warning", "json", "paid", "log"),
        ("warning", "coloured", "paid by ***@example.org", "log"),
        ("warning", "whispered", "paid by ***@example.org", "log"),
        ("error", "json", "failed", "log"),
        ("error", "coloured", "failed", "log"),
        ("error", "whispered", "failed", "log"),
    ]
    assert [line.get("extra") for line in lines[:3]] == [
        {"email": "***", "order": 7},
        {"email": "***"},
        {"levelname": "WARNING", "email": "***"},
    ]
    for line in lines[5:]:
        assert line["exception"].startswith("Traceback (most recent call last):\n")
        assert line["exception"].endswith("ValueError: no such account: ***@example.org")
    [attempt] = attempts(queue, job)
    kept = attempt.output or ""
    assert "ada@" not in worker.log() + kept
    assert "INFO shop: sold\nWARNING shop: paid\n" in kept
    assert kept.count("Traceback") == 3


def test_the_traceback_of_a_record_that_the_app_formats_is_logged_once(start):
    worker = start(target="tests.processes.masked:app", log_format="json")
    lines = said_in(worker, masked.fail.enqueue())
    assert [line["message"] for line in lines] == ["failed", "failed too"]
    for line in lines:
        assert json.dumps(line).count("Traceback") == 1
        assert line["exception"].endswith("ValueError: no price")


def test_json_that_a_job_prints_keeps_its_level_its_fields_and_its_traceback(start, queue):
    worker = start(target="tests.processes.printing:app", log_format="json")
    job = printing.talk.enqueue()
    lines = said_in(worker, job)
    assert in_short(lines) == [
        ("info", "outlive.job", "sold", "output"),
        ("warning", "outlive.job", "no price", "output"),
        ("error", "outlive.job", "failed", "output"),
        ("critical", "outlive.job", "of a cloud", "output"),
    ]
    assert [line.get("extra") for line in lines] == [{"order": 7}, {"order": 7}, None, {"logger": "shop"}]
    assert lines[2]["exception"].startswith("Traceback (most recent call last):\n")
    assert lines[2]["exception"].endswith("ValueError: no price")
    [attempt] = attempts(queue, job)
    assert '"level": "warning"' in (attempt.output or ""), "what was printed stays with the attempt"


def test_json_that_a_job_prints_is_text_with_its_fields_and_above_the_level_of_the_log(start):
    worker = start(target="tests.processes.printing:app", log_level="warning", wait=False)
    job = printing.talk.enqueue()
    assert finished(job) is State.SUCCEEDED
    worker.says("CRITICAL outlive.job: [tests.processes.printing.talk")
    said = [line.split(" ", 1)[1] for line in worker.log().splitlines() if short_id(job.id) in line]
    who = f"outlive.job: [tests.processes.printing.talk {short_id(job.id)} #1] "
    assert said[:3] == [
        f'WARNING {who}no price {{"order":7}}',
        f"ERROR   {who}failed",
        f"ERROR   {who}Traceback (most recent call last):",
    ]


def test_hostile_json_that_a_job_prints_stays_text_and_its_fields_are_never_the_workers(start):
    worker = start(target="tests.processes.printing:app", log_format="json")
    job = printing.forge.enqueue()
    *lines, forged = said_in(worker, job)
    assert in_short(lines) == [("info", "outlive.job", line, "output") for line in printing.HOSTILE]
    assert in_short([forged]) == [("error", "outlive.job", "forged\nDead worker detected", "output")]
    assert (forged["job_id"], forged["task"], forged["attempt"]) == (str(job.id), printing.forge.name, 1)
    assert forged["extra"] == {
        "job_id": "x",
        "task": "y",
        "logger": "outlive.worker",
        "time": "z",
        "stream": "log",
        "url": "postgresql://me:***@host/db",
    }


def test_a_record_of_the_root_logger_keeps_its_level_although_python_configures_it(start, queue):
    worker = start(target="tests.processes.talking:app")
    job = talking.talk_to_root.enqueue()
    assert finished(job) is State.SUCCEEDED
    [attempt] = attempts(queue, job)
    assert attempt.output == "ERROR root: no logger\nWARNING shop.parser: another\n"
    worker.says(f"ERROR   outlive.job: [tests.processes.talking.talk_to_root {short_id(job.id)} #1] root: no logger")
