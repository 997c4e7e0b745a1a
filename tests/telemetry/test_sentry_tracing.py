"""Transactions of Sentry: real workers send them to a receiver on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from outlive import State
from outlive.model import JobRequest
from outlive.telemetry import publishing
from tests.driving.receiving import Receiver, receiving
from tests.telemetry import observed
from tests.waiting import eventually

TARGET = "tests.telemetry.traced:app"
REQUEST = """
import sentry_sdk
from tests.telemetry import observed, traced
with sentry_sdk.start_transaction(op="http.server", name="GET /x", sampled={sampled}) as transaction:
    jobs = [observed.tagged.enqueue(failing=False), observed.fail.enqueue()]
    if {sampled} is not None:
        observed.app.enqueue_many([observed.follow.job(), observed.follow.job()])
print(transaction.trace_id, *(job.id for job in jobs))
"""
BARE = """
import sentry_sdk
from tests.telemetry import observed
sentry_sdk.init()
print(observed.tagged.enqueue(failing=False).id)
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as one:
        monkeypatch.setenv("SENTRY_DSN", one.address.replace("//", "//key@") + "/7")
        monkeypatch.setenv("SENTRY_ENVIRONMENT", "tests")
        yield one


def request(database_url: str, program: str) -> list[str]:
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": database_url, "OUTLIVE_SENTRY": "true"}
    asked = subprocess.run([sys.executable, "-c", program], env=environ, text=True, capture_output=True, check=True)
    return asked.stdout.split()


def transactions(receiver: Receiver) -> dict[str, list[dict[str, Any]]]:
    """Those of jobs, by their ids, in the order of the attempts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in receiver.items("transaction"):
        if one["contexts"]["trace"]["op"] == "queue.process":
            found.setdefault(one["tags"]["outlive.job_id"], []).append(one)
    return {job: sorted(made, key=lambda one: str(one["tags"]["outlive.attempt"])) for job, made in found.items()}


def test_each_attempt_is_a_transaction_in_the_trace_of_its_request(start, receiver, database_url):
    worker = start(slots=1, target=TARGET, sentry="true")
    trace, quiet, failing = request(database_url, REQUEST.format(sampled=True))
    eventually(lambda: observed.app.get_job(failing).status() is State.FAILED, within_s=30, what="both have ended")
    eventually(lambda: observed.app.get_job(quiet).status() is State.SUCCEEDED, within_s=30)
    assert worker.stop() == 0
    found = transactions(receiver)
    (asked,) = (one for one in receiver.items("transaction") if one["transaction"] == "GET /x")
    publishing = {span["span_id"]: span for span in asked["spans"]}
    assert [(span["op"], span["description"], span["data"].get("messaging.message.id")) for span in asked["spans"]] == [
        ("queue.publish", observed.tagged.name, quiet),
        ("queue.publish", observed.fail.name, failing),
        ("queue.publish", observed.follow.name, None),
    ]
    assert asked["spans"][2]["data"]["messaging.batch.message_count"] == 2

    (one,) = found[quiet]
    about = one["contexts"]["trace"]
    assert (one["transaction"], one["transaction_info"]["source"]) == (observed.tagged.name, "task")
    assert (about["trace_id"], about["status"], about["origin"]) == (trace, "ok", "auto.queue.outlive")
    assert publishing[about["parent_span_id"]]["description"] == observed.tagged.name
    assert one["environment"] == "tests"
    data = about["data"]
    assert 0 < data.pop("messaging.message.receive.latency") < 60_000
    assert {key: value for key, value in data.items() if key.startswith("messaging")} == {
        "messaging.system": "outlive",
        "messaging.message.id": quiet,
        "messaging.destination.name": "default",
        "messaging.message.retry.count": 0,
    }

    traces = [attempt["contexts"]["trace"] for attempt in found[failing]]
    assert [(at["trace_id"], at["status"], at["data"]["messaging.message.retry.count"]) for at in traces] == [
        (trace, "internal_error", 0),
        (trace, "internal_error", 1),
    ]
    (event,) = receiver.events()
    assert event["contexts"]["trace"]["span_id"] == traces[1]["span_id"]
    headers = [head for head in receiver.heads() if head.get("trace", {}).get("transaction") == "GET /x"]
    assert len(headers) >= 5, "each envelope of the trace says what decided that it is sampled"


def test_a_job_is_sampled_if_its_request_is_and_by_the_workers_rate_if_that_did_not_decide(
    start, receiver, database_url, monkeypatch
):
    monkeypatch.setenv("RATE", "0")
    worker = start(slots=1, target=TARGET, sentry="true")
    _, sampled, _ = request(database_url, REQUEST.format(sampled=True))
    _, dropped, _ = request(database_url, REQUEST.format(sampled=False))
    (undecided,) = request(database_url, BARE)
    alone = observed.tagged.enqueue(failing=False)
    jobs = [observed.app.get_job(job) for job in (sampled, dropped, undecided, alone.id)]
    eventually(lambda: all(job.status() is State.SUCCEEDED for job in jobs), within_s=30)
    assert worker.stop() == 0
    assert {sampled} == set(transactions(receiver)) & {sampled, dropped, undecided, str(alone.id)}


def test_a_job_without_a_request_begins_a_trace(start, receiver):
    worker = start(slots=1, target=TARGET, sentry="true")
    alone = observed.tagged.enqueue(failing=False)
    assert alone.result(timeout=30) is None
    assert worker.stop() == 0
    ((one,),) = transactions(receiver).values()
    assert "parent_span_id" not in one["contexts"]["trace"] or one["contexts"]["trace"]["parent_span_id"] is None
    (head,) = receiver.heads()
    assert head["trace"]["transaction"] == observed.tagged.name


def test_jobs_that_share_a_process_have_a_transaction_each(start, receiver, tmp_path):
    worker = start(slots=1, target=TARGET, sentry="true")
    jobs = {name: observed.beside.enqueue(name, str(tmp_path / "meeting"), failing=name == "a") for name in ("a", "b")}
    eventually(lambda: jobs["a"].status() is State.FAILED, within_s=30)
    (tmp_path / "meeting.over").touch()
    assert jobs["b"].result(timeout=30)
    assert worker.stop() == 0
    found = transactions(receiver)
    for name, status in (("a", "internal_error"), ("b", "ok")):
        (one,) = found[str(jobs[name].id)]
        assert (one["tags"]["name"], one["contexts"]["trace"]["status"]) == (name, status)


def test_jobs_do_not_wait_for_a_sentry_that_does_not_answer_and_their_processes_stay_clean(start, receiver):
    receiver.silent.set()
    worker = start(slots=1, target=TARGET, sentry="true")
    jobs = [observed.clean.enqueue() for _ in range(3)]
    assert len({job.result(timeout=30) for job in jobs}) == 1, "all ran in one process, which started no thread"
    fresh = [observed.quick.enqueue() for _ in range(10)]
    eventually(lambda: all(job.status() is State.SUCCEEDED for job in fresh), within_s=5, what="none waits 1.5 s")
    receiver.silent.clear()
    receiver.released.set()
    assert worker.stop() == 0
    assert len(transactions(receiver)) == 13


def test_the_supervisor_reaches_sentry_as_the_app_does_and_leaves_a_transport_of_the_app_alone(receiver):
    program = """
import sentry_sdk
from outlive.child.sentry import Sentry, ToSupervisor
sentry_sdk.init(traces_sample_rate=1, {how})
options, transport = Sentry().options, sentry_sdk.get_client().transport
print(options.get("https_proxy"), isinstance(transport, ToSupervisor))
"""
    own = "proxy_headers={'Proxy-Authorization': 'Basic eA=='}"
    assert request("", program.format(how="https_proxy='http://127.0.0.1:9'")) == ["http://127.0.0.1:9", "True"]
    assert request("", program.format(how=own)) == ["None", "False"]


def test_without_tracing_no_job_carries_more_and_no_enqueue_is_counted(receiver, database_url, queue):
    request(database_url, BARE)
    assert queue.execute("select array(select json_object_keys(options::json)) from outlive.jobs").fetchall() == [
        (["traceparent"],)
    ]

    def carry(requests: list[JobRequest]) -> list[JobRequest]:
        return requests

    with publishing.enqueuing(carry) as found:
        assert found is carry
