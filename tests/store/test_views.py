"""The views for operators: jobs, workers, queues and sources."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Ended
from outlive.protocol import KeptStep, Progress, Wait
from outlive.states import Outcome, State
from tests.driving.making import NOON, WORKER, Queue, lane, limits, new_worker


@pytest.fixture(autouse=True)
def noon(queue: Queue) -> None:
    queue.set_now()


def job_state(queue: Queue, job: UUID) -> dict[str, Any]:
    return queue.row("select * from outlive.job_states where id = %s", job)


def shown(found: dict[str, Any], **expected: object) -> dict[str, Any]:
    """The columns of a row for which a value is expected."""
    return {name: found[name] for name in expected}


# One job


def test_a_running_job_shows_its_worker_and_when_it_was_last_heard_of(queue):
    queue.register_worker(name="crawler-1")
    job = queue.make()
    (claimed,) = queue.claim()
    queue.set_now(later_s=20)
    queue.run(store.renew(WORKER, [claimed.token]))
    queue.run(store.cancel([job]))
    queue.set_now(later_s=25)
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
    assert shown(job_state(queue, job), **expected) == expected
    queue.execute("delete from outlive.workers")
    assert job_state(queue, job)["locked_by"] == str(WORKER), "a forgotten worker is shown by its id"


def test_a_retryable_job_shows_what_went_wrong_and_when_it_is_tried_again(queue):
    job = queue.make()
    queue.run_job(job, Outcome.FAILED, error="ValueError: no", after_s=90)
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
    assert shown(job_state(queue, job), **expected) == expected


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED])
def test_a_finished_job_shows_how_and_when(queue, outcome):
    queue.register_worker(name="crawler-1")
    job = queue.make()
    (claimed,) = queue.claim()
    unclaimed = queue.make()
    queue.set_now(later_s=7)
    queue.run(store.cancel([unclaimed]))
    error = "no" if outcome is Outcome.FAILED else None
    queue.end(Ended(claimed.token, outcome, error=error, final=True))
    expected = {
        "status": str(outcome),
        "attempt": 1,
        "last_outcome": str(outcome),
        "error_message": error,
        "completed_at": NOON + timedelta(seconds=7),
        "next_retry_at": None,
        "locked_by": "crawler-1",
    }
    assert shown(job_state(queue, job), **expected) == expected
    expected = {"status": "cancelled", "completed_at": NOON + timedelta(seconds=7), "attempt": 1}
    assert shown(job_state(queue, unclaimed), **expected) == expected


def test_a_held_job_shows_why_and_since_when(queue):
    killer, blocked = queue.make_quarantined(), queue.make()
    queue.run(store.block([blocked], "the site is down"))
    expected = {
        "status": "quarantined",
        "held_since": NOON,
        "held_details": "killed its process once (max_crashes = 1)",
    }
    assert shown(job_state(queue, killer), **expected) == expected
    expected = {"status": "blocked", "held_since": NOON, "held_details": "the site is down"}
    assert shown(job_state(queue, blocked), **expected) == expected


def test_the_view_and_the_store_agree_on_every_state(queue):
    made = [queue.make_finished(outcome) for outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED)]
    made.append(queue.make_quarantined())
    made.append(queue.make())
    queue.run_job(made[-1], Outcome.FAILED)
    made.append(queue.make())
    queue.claim()
    made.append(queue.make())
    queue.run(store.suspend(WORKER, Wait(queue.claim_job(made[-1]).token, "sleep", after_s=60.0)))
    made += queue.make_many(2)
    queue.run(store.block(made[-1:], "wait"))
    statuses = {job: State(status) for job, status in queue.execute("select id, status from outlive.job_states")}
    assert statuses == queue.run(store.statuses(made))
    assert set(statuses.values()) == set(State)


# Lists


def test_recent_jobs_are_the_newest_hundred_newest_first(queue):
    made = sorted(queue.make_many(130))
    assert queue.values("select id from outlive.recent_jobs") == made[:29:-1]
    queue.execute("update outlive.jobs set created_at = created_at + interval '1 second' where id = %s", [made[60]])
    assert queue.values("select id from outlive.recent_jobs limit 1") == [made[60]]


def test_the_workers_name_and_host_stay_with_the_attempt(queue):
    queue.register_worker(name="crawler-1")
    killer = queue.make_quarantined()
    queue.execute("delete from outlive.workers")
    (attempt,) = queue.run(store.list_attempts(killer))
    (shown,) = queue.run(store.list_killers())
    assert attempt.worker == shown["killed_on"] == "crawler-1"
    assert attempt.hostname == shown["killed_on_host"]
    assert attempt.hostname


def test_progress_begins_again_with_each_attempt_and_the_checkpoint_stays(queue):
    job = queue.make(options={"max_attempts": 9})
    (first,) = queue.claim()
    queue.run(store.write_progress(WORKER, [Progress(first.token, 40.0, 50.0, "almost")]))
    queue.run(store.keep_steps(WORKER, [first.token], [KeptStep("checkpoint", b"[40]", None, None)]))
    queue.end(Ended(first.token, Outcome.CRASHED, signal="SIGSEGV", after_s=0.0))
    (second,) = queue.claim()
    queue.run(store.write_progress(WORKER, [Progress(second.token, None, None, None)]))
    expected = {"current": None, "total": None, "message": None, "checkpoint": b"[40]", "progress_attempt": 2}
    assert shown(queue.run(store.job(job))[0], **expected) == expected


def test_workers_are_shown_with_their_running_jobs(queue):
    queue.register_worker(name="busy")
    queue.register_worker(new_worker(), name="idle", state="draining")
    queue.make_many(3)
    queue.claim()
    queue.set_now(later_s=30)
    found = queue.execute(
        "select name, hostname, pid, state, slots, running, last_seen, time_since_heartbeat"
        " from outlive.worker_states order by name"
    ).fetchall()
    since = (NOON, timedelta(seconds=30))
    assert found == [("busy", "host", 42, "active", 4, 3, *since), ("idle", "host", 42, "draining", 4, 0, *since)]


def test_jobs_that_share_a_process_are_counted_in_as_few_slots_as_can_hold_them(queue):
    queue.register_worker()
    queue.run(store.register_tasks([limits(), limits("shared", share=5)]))
    queue.make_many(11, task="shared")
    queue.claim([lane("shared")])
    figures = "select busy_slots, running, claimed_ahead from outlive.worker_states"
    assert queue.execute(figures).fetchall() == [(3, 11, 0)]
    queue.make_many(3)
    queue.claim()
    assert queue.execute(figures).fetchall() == [(4, 14, 2)]


def test_an_attempt_begins_when_its_code_did_not_when_its_job_was_claimed_to_wait_behind_others(queue):
    queue.make_many(5)
    plain, failed, recorded, longer, unknown = queue.claim()
    queue.set_now(later_s=10)
    ends = [
        Ended(plain.token, took_s=0.5),
        Ended(failed.token, Outcome.FAILED, error="no", took_s=2.0),
        Ended(longer.token, took_s=60.0),
        Ended(unknown.token),
    ]
    queue.run(store.end_and_claim(WORKER, ends))
    queue.run(store.write_end(WORKER, Ended(recorded.token, records=b"[]", took_s=3.0)))
    ran = dict(queue.execute("select token, extract(epoch from ended_at - started_at)::float from outlive.attempts"))
    assert [ran[one.token] for one in (plain, failed, recorded, longer, unknown)] == [0.5, 2, 3, 10, 10]


def test_queues_are_shown_with_the_number_of_their_jobs(queue):
    queue.make_many(3)
    queue.make(delay_s=60)
    queue.claim(limit=1)
    held, _ = queue.make_many(2, queue="slow")
    queue.run(store.block([held], "wait"))
    queue.run(store.pause_queue("slow"))
    queue.run(store.pause_queue("empty"))
    queue.run(store.resume_queue("empty"))
    found = queue.execute(
        "select name, paused, paused_at, waiting, ready, running, blocked, quarantined"
        " from outlive.queue_states order by name"
    )
    assert found.fetchall() == [
        ("default", False, None, 3, 2, 1, 0, 0),
        ("empty", False, None, 0, 0, 0, 0, 0),
        ("slow", True, NOON, 1, 1, 0, 1, 0),
    ]
    assert queue.row("select oldest_ready_at from outlive.queue_states where name = 'slow'") == {
        "oldest_ready_at": NOON
    }


def test_a_queue_without_jobs_is_known_by_its_task_or_by_a_worker_that_lives(queue):
    queue.register_task(queue="mail")
    for worker, state, served in ((WORKER, "active", ["mail", "slow"]), (new_worker(), "dead", ["past"])):
        queue.register_worker(worker, state=state)
        queue.execute("update outlive.workers set queues = %s where id = %s", [served, worker])
    names = "select name from outlive.queue_states where waiting = 0 order by name"
    assert queue.values(names) == ["mail", "slow"]


def test_a_queue_counts_its_suspects_as_waiting_and_its_killers_apart(queue):
    queue.make_quarantined()
    queue.make(options={"max_losses": 2})
    queue.claim(lease_s=1)
    queue.set_now(later_s=2)
    queue.run(store.expire())
    found = queue.row("select waiting, ready, running, quarantined from outlive.queue_states")
    assert found == {"waiting": 1, "ready": 0, "running": 0, "quarantined": 1}


# Many jobs

BIG = {"jobs", "attempts", "waiting"}


@pytest.fixture
def crowd(queue: Queue) -> list[UUID]:
    """Make 100,000 jobs, some waiting and some finished, with the statistics that autovacuum would make."""
    queue.execute(
        "insert into outlive.jobs (id, task, queue, args, priority, ready_at, fingerprint, created_at)"
        " select gen_random_uuid(), 'work', 'default', '{}', 5, outlive.now(), '', outlive.now()"
        " from generate_series(1, 100000)"
    )
    queue.execute(
        "insert into outlive.waiting select queue, source, task, priority, ready_at, id from outlive.jobs"
        " order by id limit 40000"
    )
    queue.execute(
        "insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses,"
        " queue, source, task)"
        " select id, 1, -row_number() over (), 'succeeded', 'succeeded', outlive.now(), 0, 0, 0, queue, source, task"
        " from outlive.jobs order by id desc limit 60000"
    )
    queue.execute("analyze outlive.jobs, outlive.attempts")
    return queue.values("select id from outlive.jobs order by id")


@pytest.mark.long
def test_the_status_of_one_job_among_many_is_found_by_indexes_alone(database_url, crowd):
    """Operators have such a connection: only the plans of workers are pinned."""
    with Queue.at(database_url) as plain:
        for job in (crowd[0], crowd[-1]):
            looks = (store.statuses([job]), store.outcomes([job]), store.job(job), store.list_attempts(job))
            queries: list[tuple[bytes, tuple[object, ...]]] = [
                *((look.text, look.parameters) for look in looks),
                (b"select * from outlive.job_states where id = $1", (job,)),
                (b"select outlive.state_of($1)", (job,)),
            ]
            for text, parameters in queries:
                scans = [one for one in plain.plan(text, parameters) if "Relation Name" in one]
                slow = [one for one in scans if one["Node Type"] == "Seq Scan" and one["Relation Name"] in BIG]
                assert slow == [], text
                assert max((one["Actual Rows"] for one in scans), default=0) <= 1
