"""Limits by key: how many jobs of a key are admitted, who is next, and how slots come back."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from outlive import db, store
from outlive.errors import BadArguments
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import NOON, TASK, WORKER, Queue, lane, links, new_worker, request
from tests.store.acting import NOW, assert_sound, give_up
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, succeed

pytestmark = pytest.mark.usefixtures("sound")

# Who starts


@pytest.mark.parametrize("concurrency", [None, 1, 2, 3])
def test_as_many_jobs_of_a_key_start_as_it_allows(queue, concurrency):
    jobs = [make_keyed(queue, concurrency=concurrency) for _ in range(5)]
    running = claim(queue)
    assert [one.id for one in running] == jobs[: concurrency or 1]
    assert {queue.state_of(job) for job in jobs[len(running) :]} == {State.PENDING}
    assert claim(queue) == []


def test_keys_are_independent_and_jobs_without_a_key_are_free(queue):
    for key in ("a", "b"):
        queue.enqueue([request(links=links(key)) for _ in range(3)])
    queue.make_many(3)
    assert len(claim(queue)) == 2 + 3


def test_a_key_counts_jobs_of_all_tasks_queues_and_batches_together(queue):
    queue.enqueue(
        [
            request(links=links(CUSTOMER, 2)),
            request("other", links=links(CUSTOMER, 2)),
            request(queue="slow", links=links(CUSTOMER, 2)),
        ]
    )
    lanes = [lane(), lane("other"), lane(queue="slow")]
    assert len(claim(queue, lanes)) == 2


def test_the_most_urgent_job_is_next_and_then_the_one_that_was_ready_first(queue):
    queue.set_now()
    first = make_keyed(queue)
    late, early, urgent = (
        make_keyed(queue, run_at=NOON - timedelta(seconds=1), priority=7),
        make_keyed(queue, run_at=NOON - timedelta(seconds=2), priority=7),
        make_keyed(queue, priority=6),
    )
    lanes = [lane(), lane(priority=6), lane(priority=7)]
    order = []
    while running := claim(queue, lanes):
        order += [one.id for one in running]
        succeed(queue, *running)
    assert order == [first, urgent, early, late]


def test_a_job_keeps_its_place_in_the_lane_while_it_waits_for_a_slot(queue):
    queue.set_now(NOW)
    make_keyed(queue)
    [running] = claim(queue)
    parked = make_keyed(queue)
    queue.set_now(NOW, later_s=5)
    queue.make_many(3)
    queue.set_now(NOW, later_s=9)
    succeed(queue, running)
    assert [one.id for one in claim(queue, limit=1)] == [parked]


def test_each_job_brings_its_own_limit_and_none_overtakes_another(queue):
    """The limit was raised from 1 to 3: the new jobs wait for the old ones, and then run three at a time."""
    old = [make_keyed(queue, concurrency=1) for _ in range(2)]
    new = [make_keyed(queue, concurrency=3) for _ in range(4)]
    [first] = claim(queue)
    succeed(queue, first)
    running = claim(queue)
    assert [one.id for one in running] == [old[1], *new[:2]]
    succeed(queue, running[0])
    assert [one.id for one in claim(queue)] == [new[2]]


def test_a_lower_limit_waits_until_enough_have_ended(queue):
    wide = [make_keyed(queue, concurrency=3) for _ in range(3)]
    narrow, behind = make_keyed(queue, concurrency=1), make_keyed(queue, concurrency=3)
    running = claim(queue)
    assert [one.id for one in running] == wide
    succeed(queue, running[0])
    succeed(queue, running[1])
    assert claim(queue) == [], "the narrow one must be alone when it starts"
    succeed(queue, running[2])
    assert [one.id for one in claim(queue)] == [narrow, behind]


def test_jobs_that_come_together_are_admitted_each_by_its_own_limit(queue):
    with queue.transaction():
        wide, narrow, _ = (make_keyed(queue, concurrency=limit) for limit in (3, 1, 3))
    [running] = claim(queue)
    assert running.id == wide
    succeed(queue, running)
    assert [one.id for one in claim(queue, limit=1)] == [narrow]


@pytest.mark.parametrize(
    "wrong",
    [
        *('{"concurrency": 2}', '{"key": ""}', '{"key": null, "concurrency": 1}', '{"key": 7}'),
        *('{"key": "a", "concurrency": 0}', '{"key": "a", "concurrency": 1001}', '{"key": "a", "concurrency": 1.5}'),
        *('{"key": "a", "concurrency": "many"}', '{"key": "%s"}' % ("x" * 1001)),
    ],
)
def test_a_wrong_key_or_limit_is_refused(queue, wrong):
    with pytest.raises(BadArguments, match="concurrency"), db.translated_errors():
        queue.make(links=wrong.encode())


def test_everyone_can_enqueue_with_a_key_in_sql(queue):
    for _ in range(3):
        queue.execute("select outlive.enqueue('work', concurrency_key => 'a', concurrency => 2)")
    queue.execute("select outlive.enqueue('work', concurrency_key => 'b')")
    assert len(claim(queue)) == 3
    with pytest.raises(psycopg.Error, match="needs a key"):
        queue.execute("select outlive.enqueue('work', concurrency => 2)")


def test_a_repeated_enqueue_makes_no_second_job_and_takes_no_second_slot(queue):
    job = make_keyed(queue, concurrency=2)
    make_keyed(queue, id=job, concurrency=2)
    queue.enqueue([request(id=job, links=links(CUSTOMER, 2)), request(links=links(CUSTOMER, 2))])
    assert len(admitted(queue)) == 2


# How a slot comes back


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_a_job_in_its_backoff_holds_no_slot(queue, outcome):
    queue.set_now(NOW)
    failing, other = make_keyed(queue), make_keyed(queue)
    [running] = claim(queue)
    queue.end(Ended(running.token, outcome, error="no", after_s=60.0))
    assert queue.state_of(failing) is State.RETRYABLE
    assert queue.row_of(failing)["next_retry_at"] == NOW + timedelta(seconds=60)
    [running] = claim(queue)
    assert running.id == other
    queue.set_now(NOW, later_s=60)
    assert queue.run(store.admit_due()) == 1
    assert claim(queue) == [], "the other one has the slot"
    succeed(queue, running)
    [again] = claim(queue)
    assert (again.id, again.attempt) == (failing, 2)
    assert queue.counters(failing) in ((1, 0, 0), (0, 1, 0))


def test_a_success_in_its_own_transaction_frees_the_slot_when_that_commits(queue, connect):
    make_keyed(queue), make_keyed(queue)
    [running] = claim(queue)
    other = connect()
    with queue.transaction():
        queue.execute("select outlive.complete_with_records(%s, %s)", [running.token, WORKER])
        make_keyed(other)  # It does not wait for the open transaction.
        assert claim(other) == []
    assert len(claim(other)) == 1


def test_a_job_that_was_spawned_with_a_key_queues_too(queue):
    make_keyed(queue)
    [running] = claim(queue)
    spawned = '[{"task": "work", "links": {"key": "customer-7"}}, {"task": "work", "links": {"key": "customer-7"}}]'
    queue.execute("select outlive.complete_with_records(%s, %s, spawns => %s)", [running.token, WORKER, spawned])
    assert len(claim(queue)) == 1


# Suspects


def suspect_of_key(queue: Queue) -> UUID:
    queue.register_task(max_losses=2)
    suspect = make_keyed(queue)
    worker = queue.register_worker(new_worker())
    claim(queue, worker=worker)
    give_up(queue, worker)
    queue.run(store.reap())
    assert (queue.hold_of(suspect) or ("",))[0] == "suspect"
    return suspect


def suspect_waits(queue: Queue) -> bool:
    return queue.run(store.unsourced_lanes([TASK])).suspect_waits


def test_a_suspect_queues_for_a_slot_when_a_worker_asks_for_it(queue):
    suspect = suspect_of_key(queue)
    other = make_keyed(queue)
    [running] = claim(queue)
    assert running.id == other
    make_keyed(queue)
    assert queue.run(store.claim_suspect(WORKER, tasks=[TASK])) == [], "the other one has the slot"
    assert not suspect_waits(queue)
    assert_sound(queue)
    succeed(queue, running)
    assert admitted(queue) == [suspect], "it is older than the third one"
    assert suspect_waits(queue)
    [alone] = queue.run(store.claim_suspect(WORKER, tasks=[TASK]))
    assert alone.id == suspect
    assert alone.alone_s > 0
    assert_sound(queue)
    succeed(queue, alone)
    assert len(admitted(queue)) == 1
    assert_sound(queue)


@pytest.mark.parametrize("most", [1, 2])
def test_a_job_whose_last_loss_is_taken_back_queues_behind_those_that_run(queue, most):
    """With some losses left it leaves the quarantine as a suspect, otherwise as any other job."""
    queue.register_task(max_losses=most)
    lost = make_keyed(queue)
    for _ in range(1 if most == 1 else most + 1):
        worker = queue.register_worker(new_worker())
        took = claim(queue, worker=worker)
        took = took or queue.run(store.claim_suspect(worker, tasks=[TASK]))
        assert [one.id for one in took] == [lost]
        give_up(queue, worker)
        queue.run(store.reap())
    assert queue.state_of(lost) is State.QUARANTINED
    make_keyed(queue)
    [other] = claim(queue)
    queue.register_worker(new_worker(), formerly=worker)
    assert_sound(queue)
    assert admitted(queue) == [other.id]
    succeed(queue, other)
    took = claim(queue) or queue.run(store.claim_suspect(WORKER, tasks=[TASK]))
    assert [one.id for one in took] == [lost]


# Time


def test_a_job_with_a_delay_takes_no_slot_before_its_time(queue):
    queue.set_now(NOW)
    later = make_keyed(queue, delay_s=60.0)
    now = make_keyed(queue)
    [running] = claim(queue)
    assert running.id == now
    succeed(queue, running)
    assert admitted(queue) == []
    assert queue.run(store.admit_due()) == 0
    queue.set_now(NOW, later_s=60)
    assert queue.run(store.admit_due()) == 1
    assert admitted(queue) == [later]


def test_a_sweep_that_comes_late_forgets_no_job(queue):
    queue.set_now(NOW)
    jobs = [make_keyed(queue, f"key-{n % 2}", concurrency=10, delay_s=n + 1.0) for n in range(20)]
    queue.set_now(NOW, later_s=86400)
    looks = [queue.run(store.admit_due(batch=7)) for _ in range(4)]
    assert looks == [7, 7, 6, 0], "less than the batch: no more is due"
    assert {one.id for one in claim(queue)} == set(jobs)


def test_what_a_commit_leaves_of_many_keys_is_admitted_in_parts(queue):
    queue.enqueue([request(links=links(f"key-{n}", 2)) for n in range(1200)])
    assert queue.values("select count(*) from outlive.waiting") == [500]
    looks = [queue.run(store.admit_due()) for _ in range(3)]
    assert looks == [500, 200, 0], "no look takes all that is left"
    assert queue.values("select count(*) from outlive.waiting") == [1200]
