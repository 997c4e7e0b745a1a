"""K — killer jobs."""

from collections.abc import Callable
from typing import cast

import psycopg
import pytest

from outlive import App, JobFailed, State, db, store
from outlive.client.task import Task
from outlive.states import Outcome
from tests import faults
from tests.spec.conftest import NOON, Hand, Start, add, attempts, counters, ended, outcomes
from tests.waiting import eventually

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


def test_K1_a_killer_leaves_a_durable_trace(start: Start, connection: db.Connection) -> None:
    start(name="crawler-1")
    segfault = faults.segfault.using(max_crashes=1).enqueue()
    killed = faults.die_by.using(max_crashes=1).enqueue("SIGKILL")
    eater = faults.eat_memory.enqueue()
    traces = []
    for job in (segfault, killed, eater):
        ended(job, State.QUARANTINED)
        (trace,) = attempts(connection, job)
        assert (trace.attempt, trace.worker) == (1, "crawler-1")
        assert trace.started_at
        assert trace.started_at < trace.ended_at
        assert trace.peak_memory_bytes
        traces.append((trace.outcome, trace.signal))
    assert traces == [
        (Outcome.CRASHED, "SIGSEGV"),
        (Outcome.CRASHED, "SIGKILL"),
        (Outcome.OUT_OF_MEMORY, "SIGKILL"),
    ]
    (trace,) = attempts(connection, segfault)
    assert "the last words before the segfault" in (trace.output or "")
    assert "in segfault" in (trace.stack or "")


def test_K2_a_killer_is_quarantined_after_max_crashes_until_a_person_releases_it(
    start: Start, connection: db.Connection
) -> None:
    start()
    by_default = [faults.die_by.enqueue(name) for name in ("SIGSEGV", "SIGTERM", "SIGINT")]
    its_own = faults.die_by.using(max_crashes=2).enqueue("SIGKILL")
    its_tasks = faults.eat_memory.enqueue()
    for job, limit in [*((job, 3) for job in by_default), (its_own, 2), (its_tasks, 1)]:
        ended(job, State.QUARANTINED)
        assert counters(connection, job) == (0, limit, 0)
        assert len(attempts(connection, job)) == limit
    db.run(connection, store.release([its_own.id]))
    eventually(lambda: len(attempts(connection, its_own)) == 4 and its_own.status() is State.QUARANTINED)


def test_K3_killers_take_down_neither_the_worker_nor_any_other_job(start: Start, connection: db.Connection) -> None:
    worker = start()
    killers = faults.app.enqueue_many(
        job
        for _ in range(3)
        for job in (faults.die_by.job("SIGSEGV"), faults.die_by.job("SIGKILL"), faults.exit_with.job(9))
    )
    healthy = faults.app.enqueue_many(faults.add.job(n, n) for n in range(100))
    warm = faults.app.enqueue_many(faults.warm.job(n) for n in range(100))
    assert [job.result(timeout=30) for job in healthy] == [2 * n for n in range(100)]
    for one in (*healthy, *warm):
        ended(one, State.SUCCEEDED)
    for killer in killers:
        ended(killer, State.QUARANTINED)
    found = connection.execute("select state, count(*) from outlive.attempts group by 1 order by 2").fetchall()
    assert dict(found) == {"quarantined": 9, "retryable": 18, "succeeded": 200}
    assert worker.process.poll() is None


@pytest.fixture
def effects(connection: db.Connection) -> Callable[[], list[str]]:
    """What jobs have done, in the same database."""
    connection.execute("create table effects (what text)")
    return lambda: sorted(what for (what,) in connection.execute("table effects").fetchall())


def test_K8_effects_and_completion_commit_together_or_not_at_all(
    start: Start, connection: db.Connection, database_url: str, effects: Callable[[], list[str]]
) -> None:
    start()
    paid, undone, raised, died = (
        faults.pay.enqueue(database_url, how) for how in ("commit", "roll back", "raise", "die")
    )
    assert cast("object", paid.result(timeout=20)) == {"paid": "commit"}
    ended(undone, State.FAILED)
    ended(raised, State.FAILED)
    ended(died, State.QUARANTINED)
    assert effects() == ["commit"]
    traces = [
        (trace.outcome, trace.signal) for job in (paid, undone, raised, died) for trace in attempts(connection, job)
    ]
    failed = (Outcome.FAILED, None)
    assert traces == [(Outcome.SUCCEEDED, None), failed, failed, (Outcome.CRASHED, "SIGKILL")]
    assert attempts(connection, raised)[0].error == "ValueError: after the completion"


def test_K8_a_transaction_that_outlasts_the_lease_is_not_torn_down(
    start: Start, connection: db.Connection, database_url: str, effects: Callable[[], list[str]]
) -> None:
    start(lease_s="2", sweep_s="0.5")
    job = faults.pay.enqueue(database_url, "commit", hold_s=3)
    assert cast("object", job.result(timeout=20)) == {"paid": "commit"}
    assert outcomes(connection, job) == [Outcome.SUCCEEDED]
    assert effects() == ["commit"]
