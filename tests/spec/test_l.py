"""L — leases, as far as SQL goes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from outlive import App, State, db, store
from outlive.client.task import Task
from outlive.states import Outcome
from tests.spec.conftest import NOON, Hand

AddTask = Task[[int, int], int, int]


def test_L1_a_claim_commits_all_that_makes_a_job_running(task: AddTask, new_hand: Callable[[], Hand]) -> None:
    worker, anybody = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    worker.at(NOON)
    (claimed,) = worker.claim()
    assert job.status() is State.RUNNING
    committed = anybody.rows(
        "select id, worker, attempt, token, started_at, heartbeat_at, lease_until from outlive.running"
    )
    until = NOON + timedelta(seconds=300)
    assert committed == [(job.id, worker.id, 1, claimed.token, NOON, NOON, until)]


def test_L1_claims_skip_what_others_have_locked(task: AddTask, app: App, new_hand: Callable[[], Hand]) -> None:
    first, second = new_hand(), new_hand()
    app.enqueue_many([task.job(n, 0) for n in range(4)])
    second.connection.execute("set lock_timeout = '1s'")
    with first.connection.transaction():
        mine = first.claim(limit=3)
        theirs = second.claim()
    assert (len(mine), len(theirs)) == (3, 1)


def test_L2_a_lease_is_of_300_s_and_each_renewal_writes_a_heartbeat(task: AddTask, hand: Hand) -> None:
    task.enqueue(1, 2)
    hand.at(NOON)
    (claimed,) = hand.claim()
    moment = hand.at(NOON, later_s=20)
    assert db.run(hand.connection, store.renew(hand.id, [claimed.token])) == {claimed.token: False}
    written = hand.rows("select heartbeat_at, lease_until from outlive.running")
    assert written == [(moment, moment + timedelta(seconds=300))]


def test_L2_a_job_may_run_as_long_as_its_lease_is_renewed(task: AddTask, hand: Hand) -> None:
    job = task.enqueue(1, 2)
    hand.at(NOON)
    (claimed,) = hand.claim()
    for turn in range(1, 100):
        hand.at(NOON, later_s=turn * 299.0)
        assert db.run(hand.connection, store.expire()) == []
        assert db.run(hand.connection, store.renew(hand.id, [claimed.token])) == {claimed.token: False}
    assert job.status() is State.RUNNING


def test_L2_a_dead_one_is_free_when_its_lease_has_ended(task: AddTask, new_hand: Callable[[], Hand]) -> None:
    dead, other = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    dead.at(NOON)
    dead.claim()
    other.at(NOON, later_s=300)
    assert db.run(other.connection, store.expire()) == []
    other.at(NOON, later_s=300.001)
    assert [one.id for one in db.run(other.connection, store.expire())] == [job.id]
    assert [one.id for one in other.claim()] == [job.id]


def test_L3_reclaiming_counts_a_loss_and_says_who_held_it(task: AddTask, hand: Hand) -> None:
    job = task.enqueue(1, 2)
    hand.rows(
        "insert into outlive.workers (id, name, hostname, pid, version, slots, started_at, last_seen)"
        " values (%s, 'crawler-1', 'host', 1, '0.1', 4, now(), now()) returning id",
        hand.id,
    )
    hand.at(NOON)
    (claimed,) = hand.claim()
    hand.at(NOON, later_s=301)
    (lost,) = db.run(hand.connection, store.expire())
    assert (lost.token, lost.id, lost.worker) == (claimed.token, job.id, hand.id)
    assert (lost.locked_by, lost.state) == ("crawler-1", "pending")
    assert hand.rows("select outcome, error, failures, crashes, losses from outlive.attempts") == [
        ("lost", "Worker died unexpectedly", 0, 0, 1)
    ]
    (again,) = hand.claim()
    assert (again.attempt, again.losses, again.ready_at) == (2, 1, claimed.ready_at)


def test_L3_reclaiming_is_idempotent_and_safe_with_many_at_once(
    task: AddTask, app: App, new_hand: Callable[[], Hand]
) -> None:
    hands = [new_hand() for _ in range(8)]
    app.enqueue_many([task.job(n, 0) for n in range(200)])
    hands[0].at(NOON)
    tokens = {one.token for one in hands[0].claim()}
    start = threading.Barrier(8)

    def reap(hand: Hand) -> list[int]:
        hand.at(NOON, later_s=301)
        start.wait()
        return [lost.token for _ in range(5) for lost in db.run(hand.connection, store.expire(batch=50))]

    with ThreadPoolExecutor(8) as threads:
        lost = [token for part in threads.map(reap, hands) for token in part]
    assert sorted(lost) == sorted(tokens)
    assert hands[0].rows("select losses, count(*) from outlive.waiting group by losses") == [(1, 200)]
    assert db.run(hands[0].connection, store.expire()) == []


def test_L3_a_healthy_lease_is_left_alone_whoever_holds_it(task: AddTask, hand: Hand) -> None:
    """Reclaiming looks at the lease alone: this worker is in no table of workers."""
    job = task.enqueue(1, 2)
    hand.at(NOON)
    hand.claim()
    assert db.run(hand.connection, store.expire()) == []
    assert job.status() is State.RUNNING


def test_L4_a_worker_that_comes_back_from_the_dead_writes_nothing(task: AddTask, new_hand: Callable[[], Hand]) -> None:
    dead, other = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    dead.at(NOON)
    (old,) = dead.claim()
    other.at(NOON, later_s=301)
    db.run(other.connection, store.expire())
    (new,) = other.claim()

    before = other.rows("select * from outlive.running")
    assert not dead.end(old, result=b"1")
    assert not dead.end(old, Outcome.FAILED)
    assert db.run(dead.connection, store.renew(dead.id, [old.token])) == {}
    with pytest.raises(psycopg.Error, match="is no longer this worker's") as refused:
        dead.rows("select outlive.complete(%s, %s, '1')", old.token, dead.id)
    assert refused.value.sqlstate == "OL002"
    assert other.rows("select * from outlive.running") == before
    assert other.value("select count(*) from outlive.attempts") == 1

    assert other.end(new, result=b"3")
    assert job.result(timeout=0) == 3


def test_L4_a_token_is_worth_nothing_in_another_workers_hands(task: AddTask, new_hand: Callable[[], Hand]) -> None:
    worker, thief = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    (claimed,) = worker.claim()
    assert not thief.end(claimed)
    assert db.run(thief.connection, store.renew(thief.id, [claimed.token])) == {}
    assert job.status() is State.RUNNING
    assert worker.end(claimed)


def test_L4_the_same_worker_with_an_old_token_of_the_same_job_is_refused(task: AddTask, hand: Hand) -> None:
    task.enqueue(1, 2)
    hand.at(NOON)
    (first,) = hand.claim()
    hand.at(NOON, later_s=301)
    db.run(hand.connection, store.expire())
    (second,) = hand.claim()
    assert first.token != second.token
    assert not hand.end(first)
    assert hand.end(second)
