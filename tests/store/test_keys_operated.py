"""Jobs with a concurrency key beside operators, paused queues, other jobs and batches, and what many cost."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import TASK, WORKER, Queue, lane
from tests.store.acting import NOW, assert_sound, clear
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, succeed
from tests.store.test_keys import suspect_of_key
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("sound")

# Operators


def test_a_job_with_a_slot_that_is_cancelled_or_blocked_gives_it_back(queue):
    jobs = [make_keyed(queue) for _ in range(3)]
    queue.run(store.cancel(jobs[:1]))
    assert admitted(queue) == [jobs[1]]
    [change] = queue.run(store.block([jobs[1]], "later"))
    assert (change.changed, change.state) == (True, "blocked")
    assert admitted(queue) == [jobs[2]]
    [change] = queue.run(store.release([jobs[1]]))
    assert (change.changed, change.state) == (True, "pending")
    assert admitted(queue) == [jobs[2]]


def test_a_job_that_only_queues_is_not_held_for_a_person(queue):
    make_keyed(queue)
    second = make_keyed(queue)
    [change] = queue.run(store.release([second]))
    assert (change.changed, change.state, change.note) == (False, "pending", "it is not held")


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_a_job_that_is_retried_queues_again(queue, outcome):
    first, second = make_keyed(queue), make_keyed(queue)
    [running] = claim(queue)
    queue.end(Ended(running.token, outcome, final=True))
    [change] = queue.run(store.retry([first]))
    assert (change.changed, change.state) == (True, "pending")
    [running] = claim(queue)
    assert running.id == second
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [first]


def test_jobs_that_queue_are_listed_and_counted_as_pending(queue):
    jobs = [make_keyed(queue) for _ in range(3)]
    [running] = claim(queue)
    queue.end(Ended(running.token, Outcome.FAILED, after_s=3600.0))
    listed = {
        state: set(queue.run(store.find_jobs(store.JobFilter(states=(State(state),)), limit=10)).ids)
        for state in ("pending", "retryable")
    }
    assert listed == {"pending": set(jobs[1:]), "retryable": {jobs[0]}}
    counted: Counter[str] = Counter()
    for one in queue.run(store.count_jobs()):
        counted[one["state"]] += one["jobs"]
    assert counted == {"pending": 2, "retryable": 1}
    assert queue.row("select waiting from outlive.queue_states") == {"waiting": 3}


# Cost


def fill(queue: Queue, jobs: int, key: str) -> None:
    """Insert many jobs whose keys are as the expression `key` says, as if they had been enqueued."""
    queue.execute(
        """
        with fresh as (
          insert into outlive.jobs (id, task, queue, args, priority, ready_at, created_at, concurrency_key, concurrency)
          select gen_random_uuid(), 'work', 'default', '{}', 5, now(), now(), KEY, 1 from generate_series(1, JOBS) n
          returning *),
        parked as (
          insert into outlive.held
          select id, 'key', now(), null, queue, source, task, priority, ready_at, 0, 0, 0, 0 from fresh)
        insert into outlive.keyed_jobs
        select id, concurrency_key, 1, 'queued', priority, ready_at from fresh
        """.replace("KEY", key)
        .replace("JOBS", str(jobs))
        .encode()
    )


def rows_read(queue: Queue) -> Counter[str]:
    """How many rows of each table were read since the statistics were reset, with index entries counted as rows."""
    queue.execute("select pg_stat_force_next_flush()")
    query = """select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
      from pg_stat_user_tables where schemaname = 'outlive'"""
    return Counter({name: int(rows) for name, rows in queue.execute(query.encode()).fetchall()})


@pytest.mark.long
def test_a_hundred_thousand_jobs_that_queue_make_no_claim_and_no_end_slower(queue):
    """Half of them are of one full key; each of the others has a key of its own."""
    if queue.info.server_version < 150_000:
        pytest.skip("Postgres 14 does not write its statistics when it is told to")
    make_keyed(queue)
    [running] = claim(queue)
    fill(queue, 100_000, "case when n % 2 = 0 then 'customer-7' else 'key-' || n end")
    queue.make_many(10)
    before = rows_read(queue)
    plain = claim(queue)
    assert len(plain) == 10
    succeed(queue, *plain)
    assert queue.run(store.unsourced_lanes([TASK])).lanes == []
    assert queue.run(store.claim_suspect(WORKER, tasks=[TASK])) == []
    assert queue.run(store.admit_due()) == 0
    cost = rows_read(queue) - before
    assert cost["held"] == cost["keyed_jobs"] == 0, cost
    before = rows_read(queue)
    succeed(queue, running)
    cost = rows_read(queue) - before
    assert cost["held"] <= 5, cost
    assert cost["keyed_jobs"] <= 12, cost
    clear(queue)  # The check that all is sound would take long.


def linked(**others: Any) -> bytes:
    return msgspec.json.encode({"key": CUSTOMER, **others})


def test_a_released_job_queues_while_its_key_is_full(queue):
    first, needed = make_keyed(queue), queue.make()
    job = queue.make(links=linked(after=[needed]))
    assert (queue.state_of(job), admitted(queue)) == (State.BLOCKED, [first])
    queue.run_job(needed)
    assert (queue.state_of(job), admitted(queue)) == (State.PENDING, [first])
    [running] = claim(queue)
    assert running.id == first
    assert claim(queue) == []
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [job]


def test_a_job_is_admitted_that_was_enqueued_while_the_job_it_needs_ended(queue, connect):
    needed = queue.make()
    other = connect()
    with other.transaction():
        job = other.make(links=linked(after=[needed]))
        make_keyed(other, "another")
        queue.run_job(needed)
    assert admitted(queue) == [job]
    assert admitted(queue, "another") != []


AT_WORK = """
select 1 from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid()
"""


def test_a_job_whose_queue_is_paused_gives_its_slot_to_jobs_of_other_queues(connection):
    paused, queued, other = (make_keyed(connection, queue=queue) for queue in ("night", "night", "day"))
    assert admitted(connection) == [paused]
    connection.run(store.pause_queue("night"))
    assert admitted(connection) == [other]
    later = make_keyed(connection, queue="night")
    succeed(connection, *claim(connection, [lane(queue="day")]))
    assert admitted(connection) == []
    assert connection.run(store.resume_queue("night"))
    for one in (paused, queued, later):
        assert admitted(connection) == [one], "in their order"
        succeed(connection, *claim(connection, [lane(queue="night")]))


def test_the_slot_of_a_running_job_stays_while_its_queue_is_paused(queue):
    make_keyed(queue)
    [running] = claim(queue)
    other = make_keyed(queue, queue="day")
    queue.run(store.pause_queue("default"))
    assert admitted(queue) == [running.id]
    queue.end(Ended(running.token, Outcome.FAILED, after_s=0.0))
    assert admitted(queue) == [other], "its retry waits for the queue"
    assert queue.state_of(running.id) is State.RETRYABLE


def test_a_job_that_is_due_while_its_queue_is_paused_waits_for_the_queue(queue):
    queue.set_now(NOW)
    job = make_keyed(queue, delay_s=10.0)
    queue.run(store.pause_queue("default"))
    queue.set_now(NOW + timedelta(seconds=20))
    assert admitted(queue) == []
    queue.run(store.resume_queue("default"))
    assert admitted(queue) == [job]


def test_a_job_that_got_its_slot_as_its_queue_was_paused_gives_it_back_soon(queue, connect):
    other = connect()
    job = make_keyed(queue)
    with other.transaction():
        other.execute("select from outlive.waiting for update")  # As a claim does, which takes another one.
        queue.run(store.pause_queue("default"))
    assert admitted(queue) == [job]
    queue.run(store.requeue_missed())
    assert admitted(queue) == []


def test_a_job_that_was_enqueued_while_its_queue_was_resumed_is_admitted_soon(queue, connect):
    other = connect()
    queue.run(store.pause_queue("default"))
    with other.transaction():
        job = make_keyed(other)
        queue.run(store.resume_queue("default"))
    assert admitted(queue) == [], "it saw a paused queue"
    queue.run(store.requeue_missed())
    assert admitted(queue) == [job]


@pytest.mark.parametrize("verb", ["cancel", "block"])
def test_a_job_that_is_taken_away_as_its_time_comes_leaves_its_key(queue, connect, verb):
    reaper, operator = connect(), connect()
    make_keyed(queue)
    claim(queue)
    job = make_keyed(queue, delay_s=10.0)
    for session in (queue, reaper, operator):
        session.set_now(NOW + timedelta(seconds=20))
    act = store.cancel([job]) if verb == "cancel" else store.block([job], "a person decides")
    with ThreadPoolExecutor(1) as acting:
        with reaper.transaction():
            reaper.run(store.admit_due(100))  # It lets the job queue.
            acted = acting.submit(db.run, operator, act)
            eventually(lambda: acted.done() or queue.values(AT_WORK))
        acted.result(timeout=30)
    assert_sound(queue)
    assert job not in queue.values("select job_id from outlive.keyed_jobs")


def claim_suspect(queue: Queue) -> list[UUID]:
    return [one.id for one in queue.run(store.claim_suspect(WORKER, tasks=[TASK]))]


def test_a_suspect_that_waits_for_a_worker_holds_no_slot(queue):
    suspect = suspect_of_key(queue)
    healthy = [make_keyed(queue) for _ in range(2)]
    assert admitted(queue) == healthy[:1]
    succeed(queue, *claim(queue))
    assert claim_suspect(queue) == [], "it queues now, behind the one that runs"
    succeed(queue, *claim(queue))
    assert admitted(queue) == [suspect], "its turn has come"
    assert claim_suspect(queue) == [suspect]
    assert_sound(queue)


def test_a_suspect_that_no_worker_claims_in_its_turn_loses_its_slot(queue):
    queue.set_now(NOW)
    suspect = suspect_of_key(queue)
    make_keyed(queue)
    running = claim(queue)
    other = make_keyed(queue)
    assert claim_suspect(queue) == []
    succeed(queue, *running)
    assert admitted(queue) == [suspect]
    queue.set_now(NOW + timedelta(seconds=7))
    assert admitted(queue) == [other]
    succeed(queue, *claim(queue))
    assert claim_suspect(queue) == [suspect]
