"""K — killer jobs, as far as SQL goes."""

from collections.abc import Callable

import psycopg
import pytest

from outlive import App, JobFailed, State, db, store
from outlive.client.task import Task
from outlive.states import Outcome
from tests.spec.conftest import NOON, Hand, add

AddTask = Task[[int, int], int, int]
TRACKING = ("waiting", "running", "held", "dedupe_keys")


def left_behind(hand: Hand) -> dict[str, int]:
    return {table: len(hand.rows(f"table outlive.{table}")) for table in TRACKING}


def test_K4_the_attempt_is_committed_before_the_job_can_start(task: AddTask, new_hand: Callable[[], Hand]) -> None:
    worker, anybody = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    (claimed,) = worker.claim()
    seen = anybody.rows("select id, attempt, token, worker from outlive.running")
    assert seen == [(job.id, 1, claimed.token, worker.id)]


def test_K4_the_trace_outlives_a_transaction_of_the_job_that_is_rolled_back(
    task: AddTask, hand: Hand, database_url: str
) -> None:
    job = task.enqueue(1, 2)
    (claimed,) = hand.claim()
    with psycopg.connect(database_url) as own:
        own.execute("select outlive.complete(%s, %s, '3')", [claimed.token, hand.id])
        own.rollback()
    assert job.status() is State.RUNNING
    assert hand.end(claimed, Outcome.CRASHED, signal="SIGSEGV")
    assert hand.rows("select job_id, attempt, outcome, signal from outlive.attempts") == [
        (job.id, 1, "crashed", "SIGSEGV")
    ]


def test_K5_a_clean_end_leaves_no_tracking_behind(task: AddTask, hand: Hand) -> None:
    job = task.using(dedupe_key="page 1").enqueue(1, 2)
    hand.run(result=b"3")
    assert job.result(timeout=0) == 3
    assert left_behind(hand) == dict.fromkeys(TRACKING, 0)


def test_K5_neither_does_a_completion_in_the_jobs_own_transaction(task: AddTask, hand: Hand, database_url: str) -> None:
    job = task.using(dedupe_key="page 1").enqueue(1, 2)
    (claimed,) = hand.claim()
    with psycopg.connect(database_url) as own:
        own.execute("select outlive.complete(%s, %s, '3')", [claimed.token, hand.id])
    assert job.result(timeout=0) == 3
    assert left_behind(hand) == dict.fromkeys(TRACKING, 0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY])
def test_K5_a_handled_exception_is_a_failure_never_a_crash(task: AddTask, hand: Hand, outcome: Outcome) -> None:
    job = task.using(max_attempts=4, max_crashes=1).enqueue(1, 2)
    hand.at(NOON)
    for _ in range(4):
        hand.run(outcome, error="it raised", after_s=0)
    assert job.status() is State.FAILED
    assert hand.rows("select failures, crashes from outlive.job_states") == [(4, 0)]
    assert hand.value("select count(*) from outlive.killers") == 0


def crashed_twice(task: AddTask, hand: Hand) -> None:
    """A job that may still be tried: it has crashed twice, and its limit is three."""
    task.enqueue(1, 2)
    hand.at(NOON)
    for _ in range(2):
        hand.run(Outcome.CRASHED, signal="SIGSEGV", after_s=0)


def test_K6_the_check_runs_in_the_reaper_and_when_a_worker_starts(app: App, hand: Hand) -> None:
    crashed_twice(app.task(add), hand)
    assert db.run(hand.connection, store.quarantine_killers()) == []
    hand.knows(App().task(max_crashes=2)(add))
    (caught,) = db.run(hand.connection, store.quarantine_killers())
    assert hand.value("select status from outlive.job_states where id = %s", caught) == "quarantined"


def test_K6_the_check_runs_when_a_job_is_claimed(app: App, hand: Hand) -> None:
    crashed_twice(app.task(add), hand)
    hand.knows(App().task(max_crashes=2)(add))
    assert hand.claim() == []
    assert hand.rows("select crashes, details from outlive.killers") == [(2, "crashed 2 times (max_crashes = 2)")]


def test_K6_killers_are_listed_with_the_evidence(task: AddTask, hand: Hand) -> None:
    job = task.enqueue(1, 2)
    hand.at(NOON)
    for page in (1, 2, 3):
        hand.run(
            Outcome.CRASHED,
            signal="SIGSEGV",
            error="killed by SIGSEGV",
            peak_memory_bytes=9,
            output=f"page {page}",
            stack="in parse",
            after_s=0,
        )
    (killer,) = db.run(hand.connection, store.killers())
    expected = {
        "id": job.id,
        "crashes": 3,
        "attempt": 3,
        "signal": "SIGSEGV",
        "error_message": "killed by SIGSEGV",
        "peak_memory_bytes": 9,
        "output": "page 3",
        "stack": "in parse",
        "killed_on": str(hand.id),
        "last_kill_at": NOON,
    }
    assert {name: killer[name] for name in expected} == expected
    with pytest.raises(JobFailed, match="is quarantined: killed by SIGSEGV"):
        job.result(timeout=0)


def test_K6_release_frees_a_killer_and_resets_its_crash_count(task: AddTask, hand: Hand) -> None:
    job = task.using(max_crashes=1).enqueue(1, 2)
    hand.run(Outcome.CRASHED, signal="SIGSEGV")
    (change,) = db.run(hand.connection, store.release([job.id]))
    assert (change.changed, job.status()) == (True, State.PENDING)
    (claimed,) = hand.claim()
    assert (claimed.attempt, claimed.crashes) == (2, 0)
