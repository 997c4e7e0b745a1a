"""Events of Sentry: real workers send them to a receiver on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import outlive
from outlive import ConfigError, State, celery, config, stacks
from outlive.telemetry.crashes import Crashes, frames_of
from tests.driving.receiving import Receiver, receiving
from tests.integrations.test_celery import hopeless
from tests.telemetry import observed
from tests.waiting import eventually

REQUEST = """
import sentry_sdk
from tests.telemetry import observed
sentry_sdk.init()
trace, span, *_ = sentry_sdk.get_traceparent().split("-")
print(trace, span, observed.fail.enqueue().id, observed.die.enqueue().id)
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as one:
        monkeypatch.setenv("SENTRY_DSN", one.address.replace("//", "//key@") + "/7")
        monkeypatch.setenv("SENTRY_ENVIRONMENT", "tests")
        monkeypatch.setenv("SENTRY_RELEASE", "shop-9")
        yield one


def events(receiver: Receiver) -> dict[str, list[dict[str, Any]]]:
    """The events, by the job that they are about."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in receiver.events():
        found.setdefault(event["tags"]["outlive.job_id"], []).append(event)
    return found


def test_a_dsn_that_is_not_valid_is_refused_in_a_sentence(monkeypatch, database_url):
    monkeypatch.setenv("SENTRY_DSN", "garbage")
    said = "sentry is set, but SENTRY_DSN is not valid: Unsupported scheme ''"
    with pytest.raises(ConfigError, match=said):
        Crashes("a worker", {})
    ran = subprocess.run(
        [sys.executable, "-m", "outlive", "worker", "tests.telemetry.observed:app"],
        env={**os.environ, "OUTLIVE_DATABASE_URL": database_url, "OUTLIVE_SENTRY": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_forged_line_of_a_stack_is_left_out():
    stack = f'Current thread 0x1 (most recent call first):\n  File "a.py", line {"1" * 5000} in forged\n'
    assert frames_of(stack + '  File "b.py", line 2 in real\n') == [
        {"abs_path": "b.py", "filename": "b.py", "lineno": 2, "function": "real"}
    ]


def test_a_job_that_dies_in_a_call_of_outlive_shows_its_frames():
    files = [os.path.join(outlive.__path__[0], "child", name) for name in ("context.py", "attempt.py")]
    dump = [(files[0], "progress"), ("shop.py", "work"), (files[1], "_call")]
    stack = "".join(f'  File "{file}", line 1 in {name}\n' for file, name in dump)
    found = frames_of(stacks.evidence(f"Current thread 0x1 (most recent call first):\n{stack}"))
    assert [frame["function"] for frame in found] == ["work", "progress"]


def test_an_async_job_that_hangs_shows_the_frames_of_its_coroutines():
    waits = f'{stacks.TASK}1 (most recent call first):\n  File "shop.py", line 3 in fetch\n    await get()\n'
    threads = 'Current thread 0x1 (most recent call first):\n  File "selectors.py", line 9 in select\n'
    found = frames_of(stacks.evidence(f"{threads}\n{waits}"))
    assert [frame["function"] for frame in found] == ["select", "fetch"]


def test_every_exception_and_every_crash_makes_one_event_with_the_evidence(start, receiver):
    worker = start(slots=2, target="tests.telemetry.observed:app", sentry="true")
    quiet = observed.tagged.enqueue(failing=False)
    assert quiet.result(timeout=20) is None
    jobs = {task.name: task.enqueue() for task in (observed.fail, observed.die, observed.fault, observed.hang)}
    jobs |= {"tagged": observed.tagged.enqueue(failing=True), "meant": observed.on_purpose.enqueue()}
    unprintable = observed.unprintable.enqueue()
    ended = (State.FAILED, State.QUARANTINED)
    eventually(lambda: all(job.status() in ended for job in jobs.values()), within_s=30, what="all jobs have ended")
    eventually(lambda: unprintable.status() is State.FAILED, what="an exception that can't be printed is a failure")
    assert worker.stop() == 0
    found = events(receiver)
    counts = {name: len(found.get(str(job.id), [])) for name, job in jobs.items()}
    assert counts == {observed.fail.name: 1, observed.die.name: 1, observed.fault.name: 1, observed.hang.name: 1} | {
        "tagged": 1,
        "meant": 0,
    }
    assert sum(map(len, found.values())) == 5
    assert {(event["environment"], event["release"]) for (event, *_) in found.values()} == {("tests", "shop-9")}

    (last,) = found[str(jobs[observed.fail.name].id)]
    assert last["tags"]["outlive.attempt"] == "2"
    (raised,) = last["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "")
    assert [frame["function"] for frame in raised["stacktrace"]["frames"]] == ["fail"]
    assert raised["mechanism"] == {"type": "outlive", "handled": False}
    assert (last["transaction"], last["tags"]["outlive.task"]) == (observed.fail.name, observed.fail.name)

    (killed,) = found[str(jobs[observed.die.name].id)]
    assert killed["level"] == "fatal"
    assert killed["exception"]["values"][0]["type"] == "Crashed"
    assert killed["exception"]["values"][0]["value"] == "the process was killed by SIGKILL: last words"
    assert killed["contexts"]["outlive"]["signal"] == "SIGKILL"
    assert killed["contexts"]["outlive"]["peak_memory_bytes"] > 1_000_000
    assert killed["extra"]["output"] == "last words\n"

    (fault,) = found[str(jobs[observed.fault.name].id)]
    assert [frame["function"] for frame in fault["exception"]["values"][0]["stacktrace"]["frames"]] == ["fault"]
    (late,) = found[str(jobs[observed.hang.name].id)]
    assert (late["exception"]["values"][0]["type"], late["tags"]["outlive.outcome"]) == ("TimedOut", "timed_out")
    (plain,) = found[str(jobs["tagged"].id)]
    assert "mine" not in plain["tags"]


def test_a_worker_says_that_failed_jobs_make_no_event_if_only_the_app_turns_sentry_on(start, receiver):
    worker = start(target="tests.telemetry.provided:app", sentry="false", otel="false")
    worker.says("failed jobs make no event: set App(sentry=True) or OUTLIVE_SENTRY=true")


def test_an_attempt_that_is_tried_again_makes_no_event_and_the_last_one_does(start, receiver):
    worker = start(slots=2, target="tests.telemetry.observed:app", sentry="true")
    recovering = observed.recover.enqueue()
    jobs = {end: observed.ask_again.using(max_attempts=2).enqueue(end) for end in ("retry", "memory", "fix")}
    jobs |= {"final": observed.refuse.enqueue(), "asked for": observed.reported.enqueue()}
    ended = (State.FAILED,)
    eventually(lambda: all(job.status() in ended for job in jobs.values()), within_s=30, what="all have failed")
    eventually(lambda: recovering.status() is State.SUCCEEDED, within_s=30, what="the third attempt succeeds")
    assert worker.stop() == 0
    made = [(event["tags"]["outlive.job_id"], event) for one in events(receiver).values() for event in one]
    kinds = {id: (event["tags"]["outlive.attempt"], event["exception"]["values"][-1]["type"]) for id, event in made}
    assert len(made) == len(jobs)
    assert kinds == {
        str(jobs["retry"].id): ("2", "Retry"),
        str(jobs["memory"].id): ("2", "MemoryError"),
        str(jobs["fix"].id): ("2", "LookupError"),
        str(jobs["final"].id): ("1", "ValueError"),
        str(jobs["asked for"].id): ("1", "KeyError"),
    }


def test_a_bound_task_of_celery_makes_one_event_when_no_retry_is_left(start, receiver, database_url):
    before = celery.app.configure(config.load(flags={"database_url": database_url}))
    try:
        worker = start(slots=1, target="tests.integrations.test_celery:app", sentry="true")
        job = hopeless.task.enqueue()
        eventually(lambda: job.status() is State.FAILED, within_s=30, what="no retry is left")
        assert worker.stop() == 0
    finally:
        celery.app.configure(before)
    [event] = events(receiver)[str(job.id)]
    assert (event["tags"]["outlive.attempt"], event["exception"]["values"][-1]["type"]) == ("2", "KeyError")


@pytest.mark.long
def test_jobs_that_share_a_process_have_their_own_tags(start, receiver, tmp_path):
    worker = start(slots=1, target="tests.telemetry.observed:app", sentry="true")
    jobs = {name: observed.beside.enqueue(name, str(tmp_path / "meeting"), failing=True) for name in ("a", "b")}
    eventually(lambda: jobs["a"].status() is State.FAILED, within_s=30)
    (tmp_path / "meeting.over").touch()
    eventually(lambda: jobs["b"].status() is State.FAILED, within_s=30)
    assert worker.stop() == 0
    for name, job in jobs.items():
        [event] = events(receiver)[str(job.id)]
        assert (event["tags"]["name"], event["exception"]["values"][0]["value"]) == (name, name)


@pytest.mark.long
def test_the_events_of_a_job_are_in_the_trace_of_the_request_that_enqueued_it(start, receiver, database_url):
    worker = start(slots=2, target="tests.telemetry.observed:app", sentry="true")
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": database_url, "OUTLIVE_SENTRY": "true"}
    asked = subprocess.run([sys.executable, "-c", REQUEST], env=environ, text=True, capture_output=True, check=True)
    trace, span, failing, dying = asked.stdout.split()
    alone = observed.fail.enqueue()
    jobs = {job: observed.app.get_job(job) for job in (failing, dying)}
    ended = (State.FAILED, State.QUARANTINED)
    eventually(lambda: all(job.status() in ended for job in (alone, *jobs.values())), within_s=30)
    assert worker.stop() == 0
    traces = {
        job: [(event["contexts"]["trace"]["trace_id"], event["contexts"]["trace"]["parent_span_id"]) for event in made]
        for job, made in events(receiver).items()
    }
    assert (traces[failing], traces[dying]) == ([(trace, span)], [(trace, span)])
    ((own, _),) = traces[str(alone.id)]
    assert own != trace
