"""Results: the clients that wait are notified of every end, and each task's finished jobs are kept for their time."""

from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import (
    TASK,
    WORKER,
    Connect,
    claim,
    claim_job,
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
    request,
    run_job,
    set_now,
    state_of,
    values,
)
from tests.store.test_wakeup import Listener

HOUR_S = 3600.0


@pytest.fixture
def listener(connect: Connect) -> Listener:
    return Listener(connect(), connect(), "outlive_ended")


def wait_for(connection: db.Connection, *jobs: UUID) -> None:
    db.run(connection, store.await_jobs(jobs))


def named(payload: str) -> list[UUID]:
    return [UUID(text) for text in payload.split(",")]


# Notifications


def by_its_worker(connection: db.Connection, job: UUID) -> None:
    run_job(connection, job)


def with_records(connection: db.Connection, job: UUID) -> None:
    claimed = claim_job(connection, job)
    records = b'[{"scope": "s", "key": "k", "data": 1, "strength": 1}]'
    db.run(connection, store.complete_with_records(WORKER, Ended(claimed.token, records=records)))


def in_its_own_transaction(connection: db.Connection, job: UUID) -> None:
    register_worker(connection)
    token = claim_job(connection, job).token
    secret = values(connection, "select outlive.attempt_secret(secret, %s) from outlive.workers", token)[0]
    connection.execute("select outlive.complete(%s, %s)", [token, secret])


def by_failing(connection: db.Connection, job: UUID) -> None:
    run_job(connection, job, Outcome.FAILED, final=True)


def by_crashing(connection: db.Connection, job: UUID) -> None:
    register_task(connection, max_crashes=1, keep_finished_s=HOUR_S)
    run_job(connection, job, Outcome.CRASHED)


def by_losing_its_worker(connection: db.Connection, job: UUID) -> None:
    register_task(connection, on_worker_death="fail", keep_finished_s=HOUR_S)
    claim_job(connection, job)
    register_worker(connection, state="dead")
    assert len(db.run(connection, store.reap())) == 1


def by_losing_its_lease(connection: db.Connection, job: UUID) -> None:
    register_task(connection, on_worker_death="fail", keep_finished_s=HOUR_S)
    claim_job(connection, job, lease_s=-1)
    assert len(db.run(connection, store.expire())) == 1


def by_an_operator(connection: db.Connection, job: UUID) -> None:
    db.run(connection, store.cancel([job]))


def by_an_operator_while_it_runs(connection: db.Connection, job: UUID) -> None:
    claimed = claim_job(connection, job)
    db.run(connection, store.cancel([job]))
    end(connection, Ended(claimed.token, Outcome.CANCELLED))


def by_being_replaced(connection: db.Connection, job: UUID) -> None:
    make(connection, dedupe_key="key", on_conflict="replace")


def by_a_lower_limit(connection: db.Connection, job: UUID) -> None:
    run_job(connection, job, Outcome.CRASHED)
    register_task(connection, max_crashes=1, keep_finished_s=HOUR_S)
    assert len(db.run(connection, store.quarantine_killers())) == 1


def by_the_kills_of_others(connection: db.Connection, job: UUID) -> None:
    register_task(connection, max_crashes=1, quarantine_by="fingerprint", keep_finished_s=HOUR_S)
    other = make(connection, priority=1)
    run_job(connection, other, Outcome.CRASHED)
    claimed = claim_job(connection, job)
    assert len(db.run(connection, store.convict(WORKER, [claimed.token]))) == 1


ENDS: dict[Callable[[db.Connection, UUID], None], State] = {
    by_its_worker: State.SUCCEEDED,
    with_records: State.SUCCEEDED,
    in_its_own_transaction: State.SUCCEEDED,
    by_failing: State.FAILED,
    by_losing_its_worker: State.FAILED,
    by_losing_its_lease: State.FAILED,
    by_an_operator: State.CANCELLED,
    by_an_operator_while_it_runs: State.CANCELLED,
    by_being_replaced: State.CANCELLED,
    by_crashing: State.QUARANTINED,
    by_a_lower_limit: State.QUARANTINED,
    by_the_kills_of_others: State.QUARANTINED,
}


@pytest.mark.parametrize("ends", ENDS, ids=lambda way: way.__name__)
def test_the_end_of_an_awaited_job_is_notified_however_it_ends(
    connection: db.Connection, listener: Listener, ends: Callable[[db.Connection, UUID], None]
) -> None:
    job, other = make(connection, dedupe_key="key"), new_worker()
    wait_for(connection, job, other)
    ends(connection, job)
    assert state_of(connection, job) is ENDS[ends]
    assert [named(payload) for payload in listener.payloads()] == [[job]]
    assert values(connection, "select job_id from outlive.awaited") == [other]


def test_a_job_that_is_not_awaited_ends_without_a_notification(connection: db.Connection, listener: Listener) -> None:
    wait_for(connection, make(connection))
    make_finished(connection)
    assert listener.heard() == 0


def test_a_job_that_goes_on_stays_awaited(connection: db.Connection, listener: Listener) -> None:
    job = make(connection)
    wait_for(connection, job)
    run_job(connection, job, Outcome.FAILED, after_s=0.0)
    run_job(connection, job, Outcome.RELEASED)
    assert (listener.heard(), count(connection, "awaited")) == (0, 1)
    run_job(connection, job)
    assert (listener.heard(), count(connection, "awaited")) == (1, 0)


def test_many_ends_of_one_statement_share_few_notifications(connection: db.Connection, listener: Listener) -> None:
    jobs = make_many(connection, 450)
    wait_for(connection, *jobs)
    end(connection, *(Ended(one.token) for one in claim(connection)))
    payloads = listener.payloads()
    assert (len(payloads), max(map(len, payloads)) < 8000) == (3, True)
    assert sorted(job for payload in payloads for job in named(payload)) == sorted(jobs)


def test_an_end_does_not_wait_for_a_client_that_is_writing_its_wish(connect: Connect, listener: Listener) -> None:
    worker, client = connect(), connect()
    first, second = make_many(worker, 2)
    wait_for(worker, first, second)
    worker.execute("set lock_timeout = '1s'")
    with client.transaction():
        client.execute("update outlive.awaited set since = since where job_id = %s", [first])
        run_job(worker, first)
        run_job(worker, second)
    assert [named(payload) for payload in listener.payloads()] == [[second]]


def test_a_look_finds_the_ends_and_takes_back_wishes_that_came_too_late(connection: db.Connection) -> None:
    ended, quarantined, unknown = make_finished(connection), make_quarantined(connection), new_worker()
    pending, running = make_many(connection, 2)
    claim_job(connection, running)
    jobs = [ended, quarantined, unknown, pending, running]
    wait_for(connection, *jobs)
    found = db.run(connection, store.awaited_ends(jobs))
    assert sorted(found) == sorted([ended, quarantined, unknown])
    assert set(values(connection, "select job_id from outlive.awaited")) == {pending, running}


def test_a_wish_is_renewed_when_it_is_half_an_hour_old_and_forgotten_after_an_hour(connection: db.Connection) -> None:
    set_now(connection)
    stays, goes = make_many(connection, 2)
    wait_for(connection, stays, goes)
    written = "select xmin::text from outlive.awaited where job_id = %s"
    before = values(connection, written, stays)
    set_now(connection, later_s=HOUR_S / 2 - 1)
    wait_for(connection, stays)
    assert values(connection, written, stays) == before
    set_now(connection, later_s=HOUR_S / 2)
    wait_for(connection, stays)
    assert values(connection, written, stays) != before
    db.run(connection, store.prune_awaited())
    assert count(connection, "awaited") == 2
    set_now(connection, later_s=HOUR_S + 1)
    db.run(connection, store.prune_awaited())
    assert values(connection, "select job_id from outlive.awaited") == [stays]


# Retention


@pytest.mark.parametrize("ends", ENDS, ids=lambda way: way.__name__)
def test_a_task_says_how_long_its_succeeded_and_cancelled_jobs_are_kept(
    connection: db.Connection, ends: Callable[[db.Connection, UUID], None]
) -> None:
    set_now(connection)
    job = make(connection, dedupe_key="key")
    register_task(connection, keep_finished_s=HOUR_S)
    ends(connection, job)
    kept = ENDS[ends] not in (State.SUCCEEDED, State.CANCELLED)
    set_now(connection, later_s=HOUR_S - 1)
    assert db.run(connection, store.prune_expired()) == (0, False)
    set_now(connection, later_s=HOUR_S)
    assert db.run(connection, store.prune_expired()) == (0 if kept else 1, False)
    assert (state_of(connection, job) is not None) == kept


def test_a_task_that_keeps_nothing_loses_its_results_with_the_next_sweep(connection: db.Connection) -> None:
    set_now(connection)
    register_task(connection, keep_finished_s=0.0)
    register_task(connection, name="other")
    make_finished(connection)
    kept = make_finished(connection, task="other")
    assert db.run(connection, store.prune_expired()) == (1, False)
    assert values(connection, "select id from outlive.jobs") == [kept]


def test_a_job_that_is_retried_is_kept_from_its_last_end_on(connection: db.Connection) -> None:
    set_now(connection)
    register_task(connection, keep_finished_s=HOUR_S)
    job = make_finished(connection, Outcome.CANCELLED)
    set_now(connection, later_s=HOUR_S)
    db.run(connection, store.retry([job]))
    assert db.run(connection, store.prune_expired()) == (0, False)
    run_job(connection, job)
    assert db.run(connection, store.prune_expired()) == (0, False)
    set_now(connection, later_s=2 * HOUR_S)
    assert db.run(connection, store.prune_expired()) == (1, False)


def test_expired_jobs_go_a_batch_at_a_time(connection: db.Connection) -> None:
    register_task(connection, keep_finished_s=0.0)
    for _ in range(5):
        make_finished(connection)
    assert db.run(connection, store.prune_expired(batch=3)) == (3, True)
    assert db.run(connection, store.prune_expired(batch=3)) == (2, False)


def test_finding_the_expired_reads_nothing_of_other_tasks(connection: db.Connection) -> None:
    register_task(connection, keep_finished_s=0.0)
    for _ in range(3):
        make_finished(connection)
    connection.execute(
        "insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses)"
        " select gen_random_uuid(), 1, -n, 'succeeded', 'succeeded', outlive.now(), 0, 0, 0"
        " from generate_series(1, 5000) n"
    )
    statement = store.prune_expired()
    nodes = plan(connection, statement.text, statement.parameters)
    scans = [one for one in nodes if one.get("Relation Name") == "attempts"]
    assert max(one["Actual Rows"] * one["Actual Loops"] for one in scans) == 3
    assert {one["Node Type"] for one in scans} <= {"Index Scan", "Index Only Scan"}


def test_the_last_worker_to_register_says_how_long_jobs_are_kept(connection: db.Connection) -> None:
    for keep_s in (HOUR_S, 0.0, None):
        register_task(connection, keep_finished_s=keep_s)
        assert values(connection, "select keep_finished_s from outlive.tasks where name = %s", TASK) == [keep_s]
    spawned = msgspec.json.encode([{"id": new_worker(), "task": "next", "args": {}}])
    db.run(connection, store.enqueue([request()], max_args_bytes=100))
    (claimed,) = claim(connection)
    db.run(connection, store.complete_with_records(WORKER, Ended(claimed.token, spawns=spawned)))
    assert values(connection, "select expires_at from outlive.attempts") == [None]
