"""Limits by key: how many jobs of a key are admitted, who is next, and how slots come back."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from outlive import db, store
from outlive.errors import BadArguments
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import (
    NOON,
    TASK,
    WORKER,
    Connect,
    counters,
    end,
    enqueue,
    hold_of,
    lane,
    links,
    make,
    make_many,
    new_worker,
    register_task,
    register_worker,
    request,
    row_of,
    set_now,
    state_of,
    values,
)
from tests.store.acting import NOW, assert_sound, give_up
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, sound, succeed

__all__ = ["sound"]

# Who starts


@pytest.mark.parametrize("concurrency", [None, 1, 2, 3])
def test_as_many_jobs_of_a_key_start_as_it_allows(connection: db.Connection, concurrency: int | None) -> None:
    jobs = [make_keyed(connection, concurrency=concurrency) for _ in range(5)]
    running = claim(connection)
    assert [one.id for one in running] == jobs[: concurrency or 1]
    assert {state_of(connection, job) for job in jobs[len(running) :]} == {State.PENDING}
    assert claim(connection) == []


def test_when_one_ends_the_next_starts(connection: db.Connection) -> None:
    jobs = [make_keyed(connection, concurrency=2) for _ in range(5)]
    order = []
    while running := claim(connection):
        order += [one.id for one in running]
        succeed(connection, running[0])
        for other in running[1:]:
            succeed(connection, other)
    assert order == jobs
    assert values(connection, "select job_id from outlive.keyed_jobs") == []


def test_keys_are_independent_and_jobs_without_a_key_are_free(connection: db.Connection) -> None:
    for key in ("a", "b"):
        enqueue(connection, [request(links=links(key)) for _ in range(3)])
    make_many(connection, 3)
    assert len(claim(connection)) == 2 + 3


def test_a_key_counts_jobs_of_all_tasks_queues_and_batches_together(connection: db.Connection) -> None:
    enqueue(
        connection,
        [
            request(links=links(CUSTOMER, 2)),
            request("other", links=links(CUSTOMER, 2)),
            request(queue="slow", links=links(CUSTOMER, 2)),
        ],
    )
    lanes = [lane(), lane("other"), lane(queue="slow")]
    assert len(claim(connection, lanes)) == 2


def test_the_most_urgent_job_is_next_and_then_the_one_that_was_ready_first(connection: db.Connection) -> None:
    set_now(connection)
    first = make_keyed(connection)
    late, early, urgent = (
        make_keyed(connection, run_at=NOON - timedelta(seconds=1), priority=7),
        make_keyed(connection, run_at=NOON - timedelta(seconds=2), priority=7),
        make_keyed(connection, priority=6),
    )
    lanes = [lane(), lane(priority=6), lane(priority=7)]
    order = []
    while running := claim(connection, lanes):
        order += [one.id for one in running]
        succeed(connection, *running)
    assert order == [first, urgent, early, late]


def test_a_job_keeps_its_place_in_the_lane_while_it_waits_for_a_slot(connection: db.Connection) -> None:
    set_now(connection, NOW)
    make_keyed(connection)
    [running] = claim(connection)
    parked = make_keyed(connection)
    set_now(connection, NOW, later_s=5)
    make_many(connection, 3)
    set_now(connection, NOW, later_s=9)
    succeed(connection, running)
    assert [one.id for one in claim(connection, limit=1)] == [parked]


def test_each_job_brings_its_own_limit_and_none_overtakes_another(connection: db.Connection) -> None:
    """The limit was raised from 1 to 3: the new jobs wait for the old ones, and then run three at a time."""
    old = [make_keyed(connection, concurrency=1) for _ in range(2)]
    new = [make_keyed(connection, concurrency=3) for _ in range(4)]
    [first] = claim(connection)
    succeed(connection, first)
    running = claim(connection)
    assert [one.id for one in running] == [old[1], *new[:2]]
    succeed(connection, running[0])
    assert [one.id for one in claim(connection)] == [new[2]]


def test_a_lower_limit_waits_until_enough_have_ended(connection: db.Connection) -> None:
    wide = [make_keyed(connection, concurrency=3) for _ in range(3)]
    narrow, behind = make_keyed(connection, concurrency=1), make_keyed(connection, concurrency=3)
    running = claim(connection)
    assert [one.id for one in running] == wide
    succeed(connection, running[0])
    succeed(connection, running[1])
    assert claim(connection) == [], "the narrow one must be alone when it starts"
    succeed(connection, running[2])
    assert [one.id for one in claim(connection)] == [narrow, behind]


def test_jobs_that_come_together_are_admitted_each_by_its_own_limit(connection: db.Connection) -> None:
    with connection.transaction():
        wide, narrow, _ = (make_keyed(connection, concurrency=limit) for limit in (3, 1, 3))
    [running] = claim(connection)
    assert running.id == wide
    succeed(connection, running)
    assert [one.id for one in claim(connection, limit=1)] == [narrow]


def test_a_key_may_hold_any_text(connection: db.Connection) -> None:
    key = "ключ {\"'} \\ 🔑"
    make_keyed(connection, key)
    make_keyed(connection, key)
    [running] = claim(connection)
    succeed(connection, running)
    assert len(claim(connection)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        '{"concurrency": 2}',
        '{"key": ""}',
        '{"key": null, "concurrency": 1}',
        '{"key": 7}',
        '{"key": "a", "concurrency": 0}',
        '{"key": "a", "concurrency": 1001}',
        '{"key": "a", "concurrency": 1.5}',
        '{"key": "a", "concurrency": "many"}',
        '{"key": "%s"}' % ("x" * 1001),
    ],
)
def test_a_wrong_key_or_limit_is_refused(connection: db.Connection, wrong: str) -> None:
    with pytest.raises(BadArguments, match="concurrency"), db.translated_errors():
        make(connection, links=wrong.encode())


def test_everyone_can_enqueue_with_a_key_in_sql(connection: db.Connection) -> None:
    for _ in range(3):
        connection.execute("select outlive.enqueue('work', concurrency_key => 'a', concurrency => 2)")
    connection.execute("select outlive.enqueue('work', concurrency_key => 'b')")
    assert len(claim(connection)) == 3
    with pytest.raises(psycopg.Error, match="needs a key"):
        connection.execute("select outlive.enqueue('work', concurrency => 2)")


def test_a_repeated_enqueue_makes_no_second_job_and_takes_no_second_slot(connection: db.Connection) -> None:
    job = make_keyed(connection, concurrency=2)
    make_keyed(connection, id=job, concurrency=2)
    enqueue(connection, [request(id=job, links=links(CUSTOMER, 2)), request(links=links(CUSTOMER, 2))])
    assert len(admitted(connection)) == 2


# How a slot comes back


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_a_job_in_its_backoff_holds_no_slot(connection: db.Connection, outcome: Outcome) -> None:
    set_now(connection, NOW)
    failing, other = make_keyed(connection), make_keyed(connection)
    [running] = claim(connection)
    end(connection, Ended(running.token, outcome, error="no", after_s=60.0))
    assert state_of(connection, failing) is State.RETRYABLE
    assert row_of(connection, failing)["next_retry_at"] == NOW + timedelta(seconds=60)
    [running] = claim(connection)
    assert running.id == other
    set_now(connection, NOW, later_s=60)
    assert db.run(connection, store.admit_due()) == 1
    assert claim(connection) == [], "the other one has the slot"
    succeed(connection, running)
    [again] = claim(connection)
    assert (again.id, again.attempt) == (failing, 2)
    assert counters(connection, failing) in ((1, 0, 0), (0, 1, 0))


def test_a_job_that_is_handed_back_queues_in_its_old_place(connection: db.Connection) -> None:
    first, _ = make_keyed(connection), make_keyed(connection)
    [running] = claim(connection)
    end(connection, Ended(running.token, Outcome.RELEASED))
    [again] = claim(connection)
    assert (again.id, again.attempt) == (first, 2)


def test_a_finished_and_a_quarantined_job_give_their_slots_back(connection: db.Connection) -> None:
    register_task(connection, max_crashes=1)
    killer, failing, stopped, last = (make_keyed(connection) for _ in range(4))
    for job, ended in (
        (killer, {"outcome": Outcome.CRASHED, "signal": "SIGSEGV"}),
        (failing, {"outcome": Outcome.FAILED, "final": True}),
        (stopped, {"outcome": Outcome.CANCELLED}),
    ):
        [running] = claim(connection)
        assert running.id == job
        end(connection, Ended(running.token, **ended))
    assert state_of(connection, killer) is State.QUARANTINED
    assert [one.id for one in claim(connection)] == [last]


def test_a_success_with_records_gives_its_slot_back(connection: db.Connection) -> None:
    make_keyed(connection), make_keyed(connection)
    [running] = claim(connection)
    db.run(connection, store.complete_with_records(WORKER, Ended(running.token)))
    assert len(claim(connection)) == 1


def test_a_success_in_its_own_transaction_frees_the_slot_when_that_commits(
    connection: db.Connection, connect: Connect
) -> None:
    make_keyed(connection), make_keyed(connection)
    [running] = claim(connection)
    other = connect()
    with connection.transaction():
        connection.execute("select outlive.complete_with_records(%s, %s)", [running.token, WORKER])
        make_keyed(other)  # It does not wait for the open transaction.
        assert claim(other) == []
    assert len(claim(other)) == 1


def test_a_lost_attempt_gives_its_slot_back(connection: db.Connection) -> None:
    first, _ = make_keyed(connection), make_keyed(connection)
    worker = register_worker(connection, new_worker())
    claim(connection, worker=worker)
    give_up(connection, worker)
    db.run(connection, store.reap())
    [again] = claim(connection)
    assert again.id == first, "it keeps its place"


def test_a_job_that_was_spawned_with_a_key_queues_too(connection: db.Connection) -> None:
    make_keyed(connection)
    [running] = claim(connection)
    spawned = '[{"task": "work", "links": {"key": "customer-7"}}, {"task": "work", "links": {"key": "customer-7"}}]'
    connection.execute("select outlive.complete_with_records(%s, %s, spawns => %s)", [running.token, WORKER, spawned])
    assert len(claim(connection)) == 1


# Suspects


def suspect_of_key(connection: db.Connection) -> UUID:
    register_task(connection, max_losses=2)
    suspect = make_keyed(connection)
    worker = register_worker(connection, new_worker())
    claim(connection, worker=worker)
    give_up(connection, worker)
    db.run(connection, store.reap())
    assert (hold_of(connection, suspect) or ("",))[0] == "suspect"
    return suspect


def suspect_waits(connection: db.Connection) -> bool:
    return db.run(connection, store.unsourced_lanes([TASK])).suspect_waits


def test_a_suspect_queues_for_a_slot_when_a_worker_asks_for_it(connection: db.Connection) -> None:
    suspect = suspect_of_key(connection)
    other = make_keyed(connection)
    [running] = claim(connection)
    assert running.id == other
    make_keyed(connection)
    assert db.run(connection, store.claim_suspect(WORKER, tasks=[TASK])) == [], "the other one has the slot"
    assert not suspect_waits(connection)
    assert_sound(connection)
    succeed(connection, running)
    assert admitted(connection) == [suspect], "it is older than the third one"
    assert suspect_waits(connection)
    [alone] = db.run(connection, store.claim_suspect(WORKER, tasks=[TASK]))
    assert alone.id == suspect
    assert alone.alone_s > 0
    assert_sound(connection)
    succeed(connection, alone)
    assert len(admitted(connection)) == 1
    assert_sound(connection)


def test_losses_that_are_taken_back_leave_the_keys_right(connection: db.Connection) -> None:
    register_task(connection, max_losses=2)
    jobs = [make_keyed(connection, concurrency=2) for _ in range(3)]
    worker = register_worker(connection, new_worker())
    claim(connection, worker=worker)
    give_up(connection, worker)
    db.run(connection, store.reap())
    assert_sound(connection)
    register_worker(connection, new_worker(), formerly=worker)
    assert_sound(connection)
    assert [counters(connection, job)[2] for job in jobs] == [0, 0, 0]
    assert {one.id for one in claim(connection)} == {jobs[0], jobs[2]}, "the third got the slot of a suspect"


def test_a_loss_of_a_job_that_queues_is_taken_back(connection: db.Connection) -> None:
    lost = make_keyed(connection)
    worker = register_worker(connection, new_worker())
    claim(connection, worker=worker)
    urgent = make_keyed(connection, priority=0)
    give_up(connection, worker)
    db.run(connection, store.reap())
    assert admitted(connection) == [urgent]
    assert counters(connection, lost)[2] == 1
    register_worker(connection, new_worker(), formerly=worker)
    assert counters(connection, lost)[2] == 0
    assert values(connection, "select why from outlive.held") == ["key"]


@pytest.mark.parametrize("most", [1, 2])
def test_a_job_whose_last_loss_is_taken_back_queues_behind_those_that_run(connection: db.Connection, most: int) -> None:
    """With some losses left it leaves the quarantine as a suspect, otherwise as any other job."""
    register_task(connection, max_losses=most)
    lost = make_keyed(connection)
    for _ in range(1 if most == 1 else most + 1):
        worker = register_worker(connection, new_worker())
        took = claim(connection, worker=worker)
        took = took or db.run(connection, store.claim_suspect(worker, tasks=[TASK]))
        assert [one.id for one in took] == [lost]
        give_up(connection, worker)
        db.run(connection, store.reap())
    assert state_of(connection, lost) is State.QUARANTINED
    make_keyed(connection)
    [other] = claim(connection)
    register_worker(connection, new_worker(), formerly=worker)
    assert_sound(connection)
    assert admitted(connection) == [other.id]
    succeed(connection, other)
    took = claim(connection) or db.run(connection, store.claim_suspect(WORKER, tasks=[TASK]))
    assert [one.id for one in took] == [lost]


# Time


def test_a_job_with_a_delay_takes_no_slot_before_its_time(connection: db.Connection) -> None:
    set_now(connection, NOW)
    later = make_keyed(connection, delay_s=60.0)
    now = make_keyed(connection)
    [running] = claim(connection)
    assert running.id == now
    succeed(connection, running)
    assert admitted(connection) == []
    assert db.run(connection, store.admit_due()) == 0
    set_now(connection, NOW, later_s=60)
    assert db.run(connection, store.admit_due()) == 1
    assert admitted(connection) == [later]


def test_a_sweep_that_comes_late_forgets_no_job(connection: db.Connection) -> None:
    set_now(connection, NOW)
    jobs = [make_keyed(connection, f"key-{n % 2}", concurrency=10, delay_s=n + 1.0) for n in range(20)]
    set_now(connection, NOW, later_s=86400)
    looks = [db.run(connection, store.admit_due(batch=7)) for _ in range(4)]
    assert looks == [7, 7, 6, 0], "less than the batch: no more is due"
    assert {one.id for one in claim(connection)} == set(jobs)


def test_what_a_commit_leaves_of_many_keys_is_admitted_in_parts(connection: db.Connection) -> None:
    enqueue(connection, [request(links=links(f"key-{n}")) for n in range(1200)])
    assert values(connection, "select count(*) from outlive.waiting") == [500]
    looks = [db.run(connection, store.admit_due()) for _ in range(3)]
    assert looks == [500, 200, 0], "no look takes all that is left"
    assert values(connection, "select count(*) from outlive.waiting") == [1200]
