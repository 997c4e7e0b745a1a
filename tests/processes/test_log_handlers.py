"""Records of jobs if the app has given handlers of its own to `logging`, and the level of each line in the log."""

import json

from outlive import App
from outlive.humanize import short_id
from outlive.states import State
from tests.driving.jobs import attempts, finished
from tests.processes import talking


def test_a_record_keeps_its_level_and_logger_if_django_writes_it_to_stderr(
    start, queue, database_url, tmp_path, monkeypatch
):
    site = tmp_path / "site.log"
    monkeypatch.setenv("SITE_LOG", str(site))
    worker = start(target="tests.processes.sited:app", log_format="json")
    job = App(database_url).get_job(queue.make("tests.processes.sited.talk", args=b'{"order": 7}'))
    assert finished(job) is State.SUCCEEDED
    worker.says("succeeded")
    lines = [json.loads(line) for line in worker.log().splitlines() if '"stream":' in line]
    assert [(line["level"], line["logger"], line["message"], line["stream"]) for line in lines] == [
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
    assert finished(job) is State.SUCCEEDED
    worker.says("succeeded")
    lines = [json.loads(line) for line in worker.log().splitlines() if '"stream":' in line]
    assert [(line["level"], line["logger"], line["message"], line["stream"]) for line in lines] == [
        ("info", "shop", "sold 100 %", "log"),
        ("warning", "rich", "paid", "log"),
        ("error", "shop", "failed", "log"),
    ]
    assert lines[0]["extra"]["order"] == 7
    assert lines[2]["exception"].endswith("ValueError: no price")
    assert "exception" not in lines[2]["extra"]


def test_an_event_of_structlog_has_its_exception_however_that_is_given(start, queue, database_url):
    worker = start(target="tests.processes.structured:app", log_format="json")
    job = App(database_url).get_job(queue.make("tests.processes.structured.talk_of_errors"))
    assert finished(job) is State.SUCCEEDED
    worker.says("succeeded")
    lines = [json.loads(line) for line in worker.log().splitlines() if '"stream":' in line]
    assert [line["message"] for line in lines] == ["itself", "current", "one", "later"]
    assert all(line["exception"].endswith("ValueError: no price") for line in lines)


def test_a_record_of_the_root_logger_keeps_its_level_although_python_configures_it(start, queue):
    worker = start(target="tests.processes.talking:app")
    job = talking.talk_to_root.enqueue()
    assert finished(job) is State.SUCCEEDED
    [attempt] = attempts(queue, job)
    assert attempt.output == "ERROR root: no logger\nWARNING shop.parser: another\n"
    worker.says(f"ERROR   outlive.job: [tests.processes.talking.talk_to_root {short_id(job.id)} #1] root: no logger")
