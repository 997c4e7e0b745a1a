"""What operators do to jobs with a key, and what 100,000 of them cost."""

from collections import Counter

import pytest

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import TASK, WORKER, Queue
from tests.store.acting import clear
from tests.store.keyed import admitted, claim, make_keyed, sound, succeed

__all__ = ["sound"]

# Operators


def test_a_job_that_queues_is_cancelled_and_the_next_one_moves_up(queue):
    jobs = [make_keyed(queue) for _ in range(3)]
    [running] = claim(queue)
    [change] = queue.run(store.cancel([jobs[1]]))
    assert (change.changed, change.state) == (True, "cancelled")
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [jobs[2]]


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


def test_a_job_that_queues_is_blocked_and_released_into_the_queue(queue):
    make_keyed(queue)
    second = make_keyed(queue)
    [change] = queue.run(store.block([second], "later"))
    assert change.state == "blocked"
    [running] = claim(queue)
    succeed(queue, running)
    assert claim(queue) == []
    queue.run(store.release([second]))
    assert [one.id for one in claim(queue)] == [second]


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


def test_a_job_in_its_backoff_that_is_retried_is_next(queue):
    job = make_keyed(queue)
    [running] = claim(queue)
    queue.end(Ended(running.token, Outcome.FAILED, after_s=3600.0))
    [change] = queue.run(store.retry([job]))
    assert (change.changed, change.state) == (True, "pending")
    assert [one.attempt for one in claim(queue)] == [2]


def test_a_quarantined_job_that_is_released_queues_again(queue):
    queue.register_task(max_crashes=1)
    killer, other = make_keyed(queue), make_keyed(queue)
    [running] = claim(queue)
    queue.end(Ended(running.token, Outcome.CRASHED, signal="SIGSEGV"))
    [running] = claim(queue)
    assert running.id == other
    queue.run(store.release([killer]))
    assert claim(queue) == []
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [killer]


def test_a_job_that_queues_is_replaced_by_one_with_its_dedupe_key(queue):
    make_keyed(queue)
    old = make_keyed(queue, dedupe_key="same")
    new = make_keyed(queue, dedupe_key="same", on_conflict="replace")
    assert new != old
    assert queue.state_of(old) is State.CANCELLED
    [running] = claim(queue)
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [new]


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
    for one in queue.run(store.stats()):
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
