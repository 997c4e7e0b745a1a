"""The views for operators: jobs, workers, queues and sources."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.protocol import Progress
from outlive.states import Outcome, State
from tests.driving.making import (
    NOON,
    WORKER,
    claim,
    count,
    end,
    make,
    make_finished,
    make_many,
    make_quarantined,
    new_worker,
    plan,
    register_task,
    register_worker,
    row,
    run_job,
    set_now,
    values,
)


@pytest.fixture(autouse=True)
def noon(connection: db.Connection) -> None:
    set_now(connection)


def job_state(connection: db.Connection, job: UUID) -> dict[str, Any]:
    return row(connection, "select * from outlive.job_states where id = %s", job)


def shown(found: dict[str, Any], **expected: object) -> dict[str, Any]:
    """The columns of a row for which a value is expected."""
    return {name: found[name] for name in expected}


# One job


def test_a_pending_job_has_no_worker_and_no_end(connection: db.Connection) -> None:
    job = make(connection, queue="slow", source="shop", priority=2, delay_s=60, dedupe_key="key")
    expected = {
        "id": job,
        "task": "work",
        "queue": "slow",
        "source": "shop",
        "status": "pending",
        "priority": 2,
        "attempt": 0,
        "failures": 0,
        "crashes": 0,
        "losses": 0,
        "created_at": NOON,
        "ready_at": NOON + timedelta(seconds=60),
        "next_retry_at": None,
        "locked_by": None,
        "locked_at": None,
        "heartbeat_at": None,
        "time_since_heartbeat": None,
        "lease_until": None,
        "cancel_requested": False,
        "completed_at": None,
        "last_outcome": None,
        "error_message": None,
        "held_since": None,
        "held_details": None,
        "dedupe_key": "key",
        "batch": None,
    }
    found = job_state(connection, job)
    assert len(found.pop("fingerprint")) == 16
    assert found == expected


def test_a_running_job_shows_its_worker_and_when_it_was_last_heard_of(connection: db.Connection) -> None:
    register_worker(connection, name="crawler-1")
    job = make(connection)
    (claimed,) = claim(connection)
    set_now(connection, later_s=20)
    db.run(connection, store.renew(WORKER, [claimed.token]))
    db.run(connection, store.cancel([job]))
    set_now(connection, later_s=25)
    expected = {
        "status": "running",
        "attempt": 1,
        "locked_by": "crawler-1",
        "locked_at": NOON,
        "heartbeat_at": NOON + timedelta(seconds=20),
        "time_since_heartbeat": timedelta(seconds=5),
        "lease_until": NOON + timedelta(seconds=320),
        "cancel_requested": True,
        "completed_at": None,
    }
    assert shown(job_state(connection, job), **expected) == expected


def test_a_forgotten_worker_is_shown_by_its_id(connection: db.Connection) -> None:
    job = make(connection)
    claim(connection)
    assert job_state(connection, job)["locked_by"] == str(WORKER)


def test_a_retryable_job_shows_what_went_wrong_and_when_it_is_tried_again(connection: db.Connection) -> None:
    job = make(connection)
    run_job(connection, job, Outcome.FAILED, error="ValueError: no", after_s=90)
    expected = {
        "status": "retryable",
        "attempt": 1,
        "failures": 1,
        "next_retry_at": NOON + timedelta(seconds=90),
        "last_outcome": "failed",
        "error_message": "ValueError: no",
        "locked_by": None,
        "completed_at": None,
    }
    assert shown(job_state(connection, job), **expected) == expected


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED])
def test_a_finished_job_shows_how_and_when(connection: db.Connection, outcome: Outcome) -> None:
    register_worker(connection, name="crawler-1")
    job = make(connection)
    (claimed,) = claim(connection)
    set_now(connection, later_s=7)
    error = "no" if outcome is Outcome.FAILED else None
    end(connection, Ended(claimed.token, outcome, error=error, final=True))
    expected = {
        "status": str(outcome),
        "attempt": 1,
        "last_outcome": str(outcome),
        "error_message": error,
        "completed_at": NOON + timedelta(seconds=7),
        "next_retry_at": None,
        "locked_by": "crawler-1",
    }
    assert shown(job_state(connection, job), **expected) == expected


def test_a_job_that_is_cancelled_unclaimed_is_completed_then(connection: db.Connection) -> None:
    job = make(connection)
    set_now(connection, later_s=5)
    db.run(connection, store.cancel([job]))
    found = job_state(connection, job)
    assert (found["status"], found["completed_at"], found["attempt"]) == ("cancelled", NOON + timedelta(seconds=5), 1)


def test_a_revived_job_is_not_completed_any_more(connection: db.Connection) -> None:
    job = make_finished(connection, Outcome.FAILED)
    db.run(connection, store.retry([job]))
    found = job_state(connection, job)
    assert (found["status"], found["completed_at"], found["failures"]) == ("pending", None, 0)
    assert (found["attempt"], found["last_outcome"]) == (1, "failed")


def test_a_held_job_shows_why_and_since_when(connection: db.Connection) -> None:
    killer, blocked = make_quarantined(connection), make(connection)
    db.run(connection, store.block([blocked], "the site is down"))
    expected = {
        "status": "quarantined",
        "held_since": NOON,
        "held_details": "killed its process once (max_crashes = 1)",
    }
    assert shown(job_state(connection, killer), **expected) == expected
    expected = {"status": "blocked", "held_since": NOON, "held_details": "the site is down"}
    assert shown(job_state(connection, blocked), **expected) == expected


def test_a_suspect_shows_as_pending_with_its_losses(connection: db.Connection) -> None:
    job = make(connection, options={"max_losses": 2})
    claim(connection, lease_s=1)
    set_now(connection, later_s=2)
    db.run(connection, store.expire())
    found = job_state(connection, job)
    assert (found["status"], found["losses"], found["last_outcome"]) == ("pending", 1, "lost")
    assert found["error_message"] == "its lease expired"
    assert "it runs alone next" in found["held_details"]


def test_the_view_and_the_store_agree_on_every_state(connection: db.Connection) -> None:
    made = [make_finished(connection, outcome) for outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED)]
    made.append(make_quarantined(connection))
    made.append(make(connection))
    run_job(connection, made[-1], Outcome.FAILED)
    made.append(make(connection))
    claim(connection)
    made += make_many(connection, 2)
    db.run(connection, store.block(made[-1:], "wait"))
    statuses = {job: State(status) for job, status in connection.execute("select id, status from outlive.job_states")}
    assert statuses == db.run(connection, store.statuses(made))
    assert set(statuses.values()) == set(State)


# Lists


def test_recent_jobs_are_the_newest_hundred_newest_first(connection: db.Connection) -> None:
    made = sorted(make_many(connection, 130))
    assert values(connection, "select id from outlive.recent_jobs") == made[:29:-1]
    connection.execute(
        "update outlive.jobs set created_at = created_at + interval '1 second' where id = %s", [made[60]]
    )
    assert values(connection, "select id from outlive.recent_jobs limit 1") == [made[60]]


def test_job_states_tell_which_worker_has_finished_how_many_also_when_it_is_forgotten(
    connection: db.Connection,
) -> None:
    workers = {name: new_worker() for name in ("anna", "bert")}
    for name, worker in workers.items():
        register_worker(connection, worker, name=name)
    make_many(connection, 5)
    for worker, most in ((workers["anna"], 2), (workers["bert"], 3)):
        end(connection, *(Ended(one.token) for one in claim(connection, worker=worker, limit=most)), worker=worker)
    connection.execute("delete from outlive.workers")
    rows = connection.execute(
        "select status, locked_by, count(*) from outlive.job_states group by 1, 2 order by 2"
    ).fetchall()
    assert rows == [("succeeded", "anna", 2), ("succeeded", "bert", 3)]


def test_the_workers_name_and_host_stay_with_the_attempt(connection: db.Connection) -> None:
    register_worker(connection, name="crawler-1")
    killer = make_quarantined(connection)
    connection.execute("delete from outlive.workers")
    (attempt,) = db.run(connection, store.list_attempts(killer))
    (shown,) = db.run(connection, store.list_killers())
    assert attempt.worker == shown["killed_on"] == "crawler-1"
    assert attempt.hostname == shown["killed_on_host"]
    assert attempt.hostname


def test_progress_begins_again_with_each_attempt_and_the_checkpoint_stays(connection: db.Connection) -> None:
    job = make(connection, options={"max_attempts": 9})
    (first,) = claim(connection)
    db.run(connection, store.write_progress(WORKER, [Progress(first.token, 40.0, 50.0, "almost", b"[40]")]))
    end(connection, Ended(first.token, Outcome.CRASHED, signal="SIGSEGV", after_s=0.0))
    (second,) = claim(connection)
    db.run(connection, store.write_progress(WORKER, [Progress(second.token, None, None, None, None)]))
    expected = {"current": None, "total": None, "message": None, "checkpoint": b"[40]", "progress_attempt": 2}
    assert shown(db.run(connection, store.job(job))[0], **expected) == expected


def test_a_running_job_is_stuck_when_its_lease_has_ended(connection: db.Connection) -> None:
    register_worker(connection)
    make_finished(connection)
    stuck, alive, _ = make_many(connection, 3)
    claimed = claim(connection, limit=2)
    set_now(connection, later_s=200)
    db.run(connection, store.renew(WORKER, [one.token for one in claimed if one.id == alive]))
    set_now(connection, later_s=300)
    assert values(connection, "select id from outlive.stuck_jobs") == []
    set_now(connection, later_s=301)
    found = row(connection, "select * from outlive.stuck_jobs")
    expected = {
        "id": stuck,
        "status": "running",
        "locked_by": "crawler-1",
        "locked_at": NOON,
        "time_since_heartbeat": timedelta(seconds=301),
    }
    assert shown(found, **expected) == expected


def test_killers_are_shown_with_the_evidence_of_their_last_kill(connection: db.Connection) -> None:
    register_worker(connection, name="crawler-1")
    register_task(connection, max_crashes=2, backoff_s=(0.0,))
    job = make(connection, queue="default")
    run_job(connection, job, Outcome.CRASHED, exit_code=1)
    set_now(connection, later_s=10)
    run_job(
        connection,
        job,
        Outcome.OUT_OF_MEMORY,
        signal="SIGKILL",
        killed=True,
        peak_memory_bytes=600_000_000,
        cpu_s=1.5,
        error="killed for its memory",
        output="page 17",
        stack="in parse",
    )
    killed_at = NOON + timedelta(seconds=10)
    expected = {
        "id": job,
        "task": "work",
        "queue": "default",
        "quarantined_at": killed_at,
        "details": "killed its process 2 times (max_crashes = 2)",
        "crashes": 2,
        "losses": 0,
        "attempt": 2,
        "outcome": "out_of_memory",
        "signal": "SIGKILL",
        "exit_code": None,
        "peak_memory_bytes": 600_000_000,
        "cpu_s": 1.5,
        "error_message": "killed for its memory",
        "stack": "in parse",
        "output": "page 17",
        "killed_on": "crawler-1",
        "last_kill_at": killed_at,
    }
    assert shown(row(connection, "select * from outlive.killers"), **expected) == expected


def test_neither_a_blocked_job_nor_a_released_one_is_a_killer(connection: db.Connection) -> None:
    killer, blocked = make_quarantined(connection), make(connection)
    db.run(connection, store.block([blocked], "wait"))
    assert values(connection, "select id from outlive.killers") == [killer]
    db.run(connection, store.release([killer]))
    assert count(connection, "killers") == 0


def test_workers_are_shown_with_their_running_jobs(connection: db.Connection) -> None:
    register_worker(connection, name="busy")
    register_worker(connection, new_worker(), name="idle", state="draining")
    make_many(connection, 3)
    claim(connection)
    set_now(connection, later_s=30)
    found = connection.execute(
        "select name, hostname, pid, state, slots, running, last_seen, time_since_heartbeat"
        " from outlive.worker_states order by name"
    ).fetchall()
    since = (NOON, timedelta(seconds=30))
    assert found == [("busy", "host", 42, "active", 4, 3, *since), ("idle", "host", 42, "draining", 4, 0, *since)]


def test_queues_are_shown_with_the_number_of_their_jobs(connection: db.Connection) -> None:
    make_many(connection, 3)
    make(connection, delay_s=60)
    claim(connection, limit=1)
    held, _ = make_many(connection, 2, queue="slow")
    db.run(connection, store.block([held], "wait"))
    db.run(connection, store.pause_queue("slow"))
    db.run(connection, store.pause_queue("empty"))
    db.run(connection, store.resume_queue("empty"))
    found = connection.execute(
        "select name, paused, paused_at, waiting, ready, running, blocked, quarantined"
        " from outlive.queue_states order by name"
    )
    assert found.fetchall() == [
        ("default", False, None, 3, 2, 1, 0, 0),
        ("empty", False, None, 0, 0, 0, 0, 0),
        ("slow", True, NOON, 1, 1, 0, 1, 0),
    ]
    assert row(connection, "select oldest_ready_at from outlive.queue_states where name = 'slow'") == {
        "oldest_ready_at": NOON
    }


def test_a_queue_counts_its_suspects_as_waiting_and_its_killers_apart(connection: db.Connection) -> None:
    make_quarantined(connection)
    make(connection, options={"max_losses": 2})
    claim(connection, lease_s=1)
    set_now(connection, later_s=2)
    db.run(connection, store.expire())
    found = row(connection, "select waiting, ready, running, quarantined from outlive.queue_states")
    assert found == {"waiting": 1, "ready": 0, "running": 0, "quarantined": 1}


def test_a_sources_health_says_whether_it_is_paused_now(connection: db.Connection) -> None:
    connection.execute(
        "insert into outlive.sources (name, rate_limit_per_minute, failure_streak, last_failure_at, paused_until)"
        " values ('shop', 60, 5, outlive.now(), outlive.now() + interval '5 min'), ('bank', null, 0, null, null)"
    )
    query = "select name, enabled, rate_limit_per_minute, failure_streak, last_failure_at, paused"
    query += " from outlive.source_health order by name"
    bank = ("bank", True, None, 0, None, False)
    assert connection.execute(query.encode()).fetchall() == [bank, ("shop", True, 60, 5, NOON, True)]
    set_now(connection, later_s=300)
    assert connection.execute(query.encode()).fetchall() == [bank, ("shop", True, 60, 5, NOON, False)]


# Many jobs

BIG = {"jobs", "attempts", "waiting"}


@pytest.fixture
def crowd(connection: db.Connection) -> list[UUID]:
    """Make 100,000 jobs, some waiting and some finished, with the statistics that autovacuum would make."""
    connection.execute(
        "insert into outlive.jobs (id, task, queue, args, priority, ready_at, fingerprint, created_at)"
        " select gen_random_uuid(), 'work', 'default', '{}', 5, outlive.now(), '', outlive.now()"
        " from generate_series(1, 100000)"
    )
    connection.execute(
        "insert into outlive.waiting select queue, source, task, priority, ready_at, id from outlive.jobs"
        " order by id limit 40000"
    )
    connection.execute(
        "insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses)"
        " select id, 1, -row_number() over (), 'succeeded', 'succeeded', outlive.now(), 0, 0, 0"
        " from outlive.jobs order by id desc limit 60000"
    )
    connection.execute("analyze outlive.jobs, outlive.attempts")
    return values(connection, "select id from outlive.jobs order by id")


def test_the_status_of_one_job_among_many_is_found_by_indexes_alone(database_url: str, crowd: list[UUID]) -> None:
    """Operators have such a connection: only the plans of workers are pinned."""
    with db.connect(database_url) as plain:
        for job in (crowd[0], crowd[-1]):
            looks = (store.statuses([job]), store.outcomes([job]), store.job(job), store.list_attempts(job))
            queries: list[tuple[bytes, tuple[object, ...]]] = [
                *((look.text, look.parameters) for look in looks),
                (b"select * from outlive.job_states where id = $1", (job,)),
                (b"select outlive.state_of($1)", (job,)),
            ]
            for text, parameters in queries:
                scans = [one for one in plan(plain, text, parameters) if "Relation Name" in one]
                slow = [one for one in scans if one["Node Type"] == "Seq Scan" and one["Relation Name"] in BIG]
                assert slow == [], text
                assert max((one["Actual Rows"] for one in scans), default=0) <= 1
