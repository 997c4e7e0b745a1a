"""Results: the clients that wait are notified of every end, and each task's finished jobs are kept for their time."""

from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import TASK, WORKER, Connect, Queue, new_worker, request
from tests.store.test_wakeup import Listener

HOUR_S = 3600.0


@pytest.fixture
def listener(connect: Connect) -> Listener:
    return Listener(connect(), connect(), "outlive_ended")


def wait_for(queue: Queue, *jobs: UUID) -> None:
    queue.run(store.await_jobs(jobs))


def named(payload: str) -> list[UUID]:
    return [UUID(text) for text in payload.split(",")]


# Notifications


def by_its_worker(queue: Queue, job: UUID) -> None:
    queue.run_job(job)


def with_records(queue: Queue, job: UUID) -> None:
    claimed = queue.claim_job(job)
    records = b'[{"scope": "s", "key": "k", "data": 1, "strength": 1}]'
    queue.run(store.write_end(WORKER, Ended(claimed.token, records=records)))


def in_its_own_transaction(queue: Queue, job: UUID) -> None:
    queue.register_worker()
    token = queue.claim_job(job).token
    secret = queue.values("select outlive.attempt_secret(secret, %s) from outlive.workers", token)[0]
    queue.execute("select outlive.complete(%s, %s)", [token, secret])


def by_failing(queue: Queue, job: UUID) -> None:
    queue.run_job(job, Outcome.FAILED, final=True)


def by_crashing(queue: Queue, job: UUID) -> None:
    queue.register_task(max_crashes=1, keep_finished_s=HOUR_S)
    queue.run_job(job, Outcome.CRASHED)


def by_losing_its_worker(queue: Queue, job: UUID) -> None:
    queue.register_task(on_worker_death="fail", keep_finished_s=HOUR_S)
    queue.claim_job(job)
    queue.register_worker(state="dead")
    assert len(queue.run(store.reap())) == 1


def by_losing_its_lease(queue: Queue, job: UUID) -> None:
    queue.register_task(on_worker_death="fail", keep_finished_s=HOUR_S)
    queue.claim_job(job, lease_s=-1)
    assert len(queue.run(store.expire())) == 1


def by_an_operator(queue: Queue, job: UUID) -> None:
    queue.run(store.cancel([job]))


def by_an_operator_while_it_runs(queue: Queue, job: UUID) -> None:
    claimed = queue.claim_job(job)
    queue.run(store.cancel([job]))
    queue.end(Ended(claimed.token, Outcome.CANCELLED))


def by_being_replaced(queue: Queue, job: UUID) -> None:
    queue.make(dedupe_key="key", on_conflict="replace")


def by_a_lower_limit(queue: Queue, job: UUID) -> None:
    queue.run_job(job, Outcome.CRASHED)
    queue.register_task(max_crashes=1, keep_finished_s=HOUR_S)
    assert len(queue.run(store.quarantine_killers())) == 1


def by_the_kills_of_others(queue: Queue, job: UUID) -> None:
    queue.register_task(max_crashes=1, quarantine_by="fingerprint", keep_finished_s=HOUR_S)
    other = queue.make(priority=1)
    queue.run_job(other, Outcome.CRASHED)
    claimed = queue.claim_job(job)
    assert len(queue.run(store.convict(WORKER, [claimed.token]))) == 1


ENDS: dict[Callable[[Queue, UUID], None], State] = {
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
def test_the_end_of_an_awaited_job_is_notified_however_it_ends(queue, listener, ends):
    job, other = queue.make(dedupe_key="key"), new_worker()
    wait_for(queue, job, other)
    ends(queue, job)
    assert queue.state_of(job) is ENDS[ends]
    assert [named(payload) for payload in listener.payloads()] == [[job]]
    assert queue.values("select job_id from outlive.awaited") == [other]


def test_a_job_that_is_not_awaited_ends_without_a_notification(queue, listener):
    wait_for(queue, queue.make())
    queue.make_finished()
    assert listener.heard() == 0


def test_a_job_that_goes_on_stays_awaited(queue, listener):
    job = queue.make()
    wait_for(queue, job)
    queue.run_job(job, Outcome.FAILED, after_s=0.0)
    queue.run_job(job, Outcome.RELEASED)
    assert (listener.heard(), queue.count("awaited")) == (0, 1)
    queue.run_job(job)
    assert (listener.heard(), queue.count("awaited")) == (1, 0)


def test_many_ends_of_one_statement_share_few_notifications(queue, listener):
    jobs = queue.make_many(450)
    wait_for(queue, *jobs)
    queue.end(*(Ended(one.token) for one in queue.claim()))
    payloads = listener.payloads()
    assert (len(payloads), max(map(len, payloads)) < 8000) == (3, True)
    assert sorted(job for payload in payloads for job in named(payload)) == sorted(jobs)


def test_an_end_does_not_wait_for_a_client_that_is_writing_its_wish(connect, listener):
    worker, client = connect(), connect()
    first, second = worker.make_many(2)
    wait_for(worker, first, second)
    worker.execute("set lock_timeout = '1s'")
    with client.transaction():
        client.execute("update outlive.awaited set since = since where job_id = %s", [first])
        worker.run_job(first)
        worker.run_job(second)
    assert [named(payload) for payload in listener.payloads()] == [[second]]


def test_a_look_finds_the_ends_and_takes_back_wishes_that_came_too_late(queue):
    ended, quarantined, unknown = queue.make_finished(), queue.make_quarantined(), new_worker()
    pending, running = queue.make_many(2)
    queue.claim_job(running)
    jobs = [ended, quarantined, unknown, pending, running]
    wait_for(queue, *jobs)
    found = queue.run(store.awaited_ends(jobs))
    assert sorted(found) == sorted([ended, quarantined, unknown])
    assert set(queue.values("select job_id from outlive.awaited")) == {pending, running}


def test_a_wish_is_renewed_when_it_is_half_an_hour_old_and_forgotten_after_an_hour(queue):
    queue.set_now()
    stays, goes = queue.make_many(2)
    wait_for(queue, stays, goes)
    written = "select xmin::text from outlive.awaited where job_id = %s"
    before = queue.values(written, stays)
    queue.set_now(later_s=HOUR_S / 2 - 1)
    wait_for(queue, stays)
    assert queue.values(written, stays) == before
    queue.set_now(later_s=HOUR_S / 2)
    wait_for(queue, stays)
    assert queue.values(written, stays) != before
    queue.run(store.prune_awaited())
    assert queue.count("awaited") == 2
    queue.set_now(later_s=HOUR_S + 1)
    queue.run(store.prune_awaited())
    assert queue.values("select job_id from outlive.awaited") == [stays]


# Retention


@pytest.mark.parametrize("ends", ENDS, ids=lambda way: way.__name__)
def test_a_task_says_how_long_its_succeeded_and_cancelled_jobs_are_kept(queue, ends):
    queue.set_now()
    job = queue.make(dedupe_key="key")
    queue.register_task(keep_finished_s=HOUR_S)
    ends(queue, job)
    kept = ENDS[ends] not in (State.SUCCEEDED, State.CANCELLED)
    queue.set_now(later_s=HOUR_S - 1)
    assert queue.run(store.prune_expired()) == (0, False)
    queue.set_now(later_s=HOUR_S)
    assert queue.run(store.prune_expired()) == (0 if kept else 1, False)
    assert (queue.state_of(job) is not None) == kept


def test_a_job_that_is_retried_is_kept_from_its_last_end_on(queue):
    queue.set_now()
    queue.register_task(keep_finished_s=HOUR_S)
    job = queue.make_finished(Outcome.CANCELLED)
    queue.set_now(later_s=HOUR_S)
    queue.run(store.retry([job]))
    assert queue.run(store.prune_expired()) == (0, False)
    queue.run_job(job)
    assert queue.run(store.prune_expired()) == (0, False)
    queue.set_now(later_s=2 * HOUR_S)
    assert queue.run(store.prune_expired()) == (1, False)


def test_expired_jobs_go_a_batch_at_a_time(queue):
    queue.register_task(keep_finished_s=0.0)
    for _ in range(5):
        queue.make_finished()
    assert queue.run(store.prune_expired(batch=3)) == (3, True)
    assert queue.run(store.prune_expired(batch=3)) == (2, False)


def test_finding_the_expired_reads_nothing_of_other_tasks(queue):
    queue.register_task(keep_finished_s=0.0)
    for _ in range(3):
        queue.make_finished()
    queue.execute(
        "insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses,"
        " queue, source, task)"
        " select gen_random_uuid(), 1, -n, 'succeeded', 'succeeded', outlive.now(), 0, 0, 0, 'default', '', 'work'"
        " from generate_series(1, 5000) n"
    )
    statement = store.prune_expired()
    nodes = queue.plan(statement.text, statement.parameters)
    scans = [one for one in nodes if one.get("Relation Name") == "attempts"]
    assert max(one["Actual Rows"] * one["Actual Loops"] for one in scans) == 3
    assert {one["Node Type"] for one in scans} <= {"Index Scan", "Index Only Scan"}


def test_the_last_worker_to_register_says_how_long_jobs_are_kept(queue):
    for keep_s in (HOUR_S, 0.0, None):
        queue.register_task(keep_finished_s=keep_s)
        assert queue.values("select keep_finished_s from outlive.tasks where name = %s", TASK) == [keep_s]
    spawned = msgspec.json.encode([{"id": new_worker(), "task": "next", "args": {}}])
    queue.run(store.enqueue([request()], max_args_bytes=100))
    (claimed,) = queue.claim()
    queue.run(store.write_end(WORKER, Ended(claimed.token, spawns=spawned)))
    assert queue.values("select expires_at from outlive.attempts") == [None]
