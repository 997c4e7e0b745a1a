"""Leases."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from outlive import State, config, store
from outlive.client.task import Task
from outlive.humanize import short_id
from outlive.states import Outcome
from tests import faults
from tests.driving.hand import Hand
from tests.driving.jobs import attempts, begun, finished, outcomes
from tests.driving.making import NOON
from tests.driving.workers import alive
from tests.waiting import eventually

AddTask = Task[[int, int], int, int]
ENDS = "select job_id, token, worker, outcome, state, result::text, ended_at from outlive.attempts order by token"


def test_a_claim_commits_all_that_makes_a_job_running(task, new_hand):
    worker, observer = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    worker.at(NOON)
    (claimed,) = worker.claim()
    assert job.status() is State.RUNNING
    committed = observer.rows(
        "select id, worker, attempt, token, started_at, heartbeat_at, lease_until from outlive.running"
    )
    until = NOON + timedelta(seconds=300)
    assert committed == [(job.id, worker.id, 1, claimed.token, NOON, NOON, until)]


def test_claims_skip_jobs_that_others_have_locked(task, app, new_hand):
    first, second = new_hand(), new_hand()
    app.enqueue_many([task.job(n, 0) for n in range(4)])
    second.connection.execute("set lock_timeout = '1s'")
    with first.connection.transaction():
        mine = first.claim(limit=3)
        theirs = second.claim()
    assert (len(mine), len(theirs)) == (3, 1)


def test_a_lease_is_of_300_s_and_each_renewal_writes_a_heartbeat(task, hand):
    task.enqueue(1, 2)
    hand.at(NOON)
    (claimed,) = hand.claim()
    moment = hand.at(NOON, later_s=20)
    assert hand.connection.run(store.renew(hand.id, [claimed.token])) == {claimed.token: False}
    written = hand.rows("select heartbeat_at, lease_until from outlive.running")
    assert written == [(moment, moment + timedelta(seconds=300))]


def test_a_job_may_run_as_long_as_its_lease_is_renewed(task, hand):
    job = task.enqueue(1, 2)
    hand.at(NOON)
    (claimed,) = hand.claim()
    for turn in range(1, 100):
        hand.at(NOON, later_s=turn * 299.0)
        assert hand.connection.run(store.expire()) == []
        assert hand.connection.run(store.renew(hand.id, [claimed.token])) == {claimed.token: False}
    assert job.status() is State.RUNNING


def test_a_dead_one_is_free_when_its_lease_has_ended(task, new_hand):
    dead, other = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    dead.at(NOON)
    dead.claim()
    other.at(NOON, later_s=300)
    assert other.connection.run(store.expire()) == []
    other.at(NOON, later_s=300.001)
    assert [one.id for one in other.connection.run(store.expire())] == [job.id]
    assert [one.id for one in other.claim()] == [job.id]


def test_reclaiming_counts_a_loss_and_names_the_former_worker(task, hand):
    job = task.enqueue(1, 2)
    hand.connection.register_worker(hand.id, name="crawler-1")
    hand.at(NOON)
    (claimed,) = hand.claim()
    hand.at(NOON, later_s=301)
    (lost,) = hand.connection.run(store.expire())
    assert (lost.token, lost.id, lost.worker) == (claimed.token, job.id, hand.id)
    assert (lost.worker_name, lost.state) == ("crawler-1", "pending")
    assert hand.rows("select outcome, error, failures, crashes, losses from outlive.attempts") == [
        ("lost", "its lease expired", 0, 0, 1)
    ]
    (again,) = hand.claim()
    assert (again.attempt, again.losses, again.ready_at) == (2, 1, claimed.ready_at)


def test_a_worker_that_reclaims_a_job_logs_its_former_worker(start, hand, queue):
    job = faults.add.enqueue(1, 2)
    hand.knows(faults.add)
    hand.connection.register_worker(hand.id, name="crawler-1")
    hand.claim()
    hand.rows("update outlive.running set lease_until = now() - interval '1 second' returning id")
    worker = start(sweep_s="0.5")
    assert worker.says(f"job {short_id(job.id)}, held by crawler-1: ")
    finished(job, State.SUCCEEDED)
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]


def test_reclaiming_is_idempotent_and_safe_with_many_at_once(task, app, new_hand):
    hands = [new_hand() for _ in range(8)]
    app.enqueue_many([task.job(n, 0) for n in range(200)])
    hands[0].at(NOON)
    tokens = {one.token for one in hands[0].claim()}
    start = threading.Barrier(8)

    def reap(hand: Hand) -> list[int]:
        hand.at(NOON, later_s=301)
        start.wait()
        return [lost.token for _ in range(5) for lost in hand.connection.run(store.expire(batch=50))]

    with ThreadPoolExecutor(8) as threads:
        lost = [token for part in threads.map(reap, hands) for token in part]
    assert sorted(lost) == sorted(tokens)
    assert hands[0].rows("select losses, count(*) from outlive.waiting group by losses") == [(1, 200)]
    assert hands[0].connection.run(store.expire()) == []


def test_a_healthy_lease_of_an_unknown_worker_is_left_alone(task, hand):
    """Reclaiming looks at the lease alone: this worker is in no table of workers."""
    job = task.enqueue(1, 2)
    hand.at(NOON)
    hand.claim()
    assert hand.connection.run(store.expire()) == []
    assert job.status() is State.RUNNING


def test_a_worker_that_comes_back_from_the_dead_writes_nothing(task, new_hand):
    dead, other = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    dead.at(NOON)
    (old,) = dead.claim()
    other.at(NOON, later_s=301)
    other.connection.run(store.expire())
    (new,) = other.claim()

    before = other.rows("select * from outlive.running")
    assert not dead.end(old, result=b"1")
    assert not dead.end(old, Outcome.FAILED)
    assert dead.connection.run(store.renew(dead.id, [old.token])) == {}
    with pytest.raises(psycopg.Error, match="is no longer this worker's") as refused:
        dead.rows("select outlive.complete_with_records(%s, %s, '1')", old.token, dead.id)
    assert refused.value.sqlstate == "OL002"
    assert other.rows("select * from outlive.running") == before
    assert other.value("select count(*) from outlive.attempts") == 1

    assert other.end(new, result=b"3")
    assert job.result(timeout=0) == 3


def test_a_token_is_worth_nothing_in_another_workers_hands(task, new_hand):
    worker, thief = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    (claimed,) = worker.claim()
    assert not thief.end(claimed)
    assert thief.connection.run(store.renew(thief.id, [claimed.token])) == {}
    assert job.status() is State.RUNNING
    assert worker.end(claimed)


def test_the_same_worker_with_an_old_token_of_the_same_job_is_refused(task, hand):
    task.enqueue(1, 2)
    hand.at(NOON)
    (first,) = hand.claim()
    hand.at(NOON, later_s=301)
    hand.connection.run(store.expire())
    (second,) = hand.claim()
    assert first.token != second.token
    assert not hand.end(first)
    assert hand.end(second)


def test_the_leases_of_living_children_are_renewed_and_dead_ones_are_free_after_lease_and_interval(
    start, queue, tmp_path
):
    """The test removes the holder from the table of liveness. Otherwise its death is noticed before its lease ends."""
    workers = [start(wait=False, lease_s="3", sweep_s="0.5") for _ in range(2)]
    by_id = {worker.started().id: worker for worker in workers}
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    beats: dict[datetime, str] = {}

    def renewed_for_longer_than_the_lease() -> bool:
        beats.update(queue.execute("select heartbeat_at, worker::text from outlive.running").fetchall())
        return bool(beats) and max(beats) - min(beats) > timedelta(seconds=3)

    eventually(renewed_for_longer_than_the_lease, within_s=20)
    (holder,) = set(beats.values())
    queue.execute("delete from outlive.liveness where worker = %s", [holder])
    by_id[holder].process.kill()
    begun(tmp_path / "go", times=2)
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]
    free_after = attempts(queue, job)[0].ended_at - max(beats)
    assert timedelta(seconds=3) <= free_after < timedelta(seconds=3 + 0.5 + 2)


def test_a_worker_that_comes_back_from_the_dead_kills_its_child(start, queue, tmp_path):
    frozen = start(lease_s="2", sweep_s="0.5")
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    (first,) = begun(tmp_path / "go")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        start(lease_s="2", sweep_s="0.5")
        begun(tmp_path / "go", times=2)
        assert alive(first)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    eventually(lambda: not alive(first), within_s=2)
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]


def test_a_worker_frozen_past_its_leases_writes_nothing_when_it_goes_on(start, queue, tmp_path):
    """One of its children ends its job meanwhile, and reports it; the other one still works, and is killed."""
    frozen = start(lease_s="2", sweep_s="0.5", name="frozen", heartbeat_s="0.2", stale_s="60", dead_s="120")
    ends, lasts = (faults.wait_for.enqueue(str(tmp_path / name)) for name in ("ends", "lasts"))
    begun(tmp_path / "ends")
    (child,) = begun(tmp_path / "lasts")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        start(lease_s="2", sweep_s="0.5", name="other")
        begun(tmp_path / "ends", times=2)
        begun(tmp_path / "lasts", times=2)
        (tmp_path / "ends").touch()
        finished(ends, State.SUCCEEDED)
        before = queue.execute(ENDS).fetchall()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    eventually(lambda: not alive(child), within_s=5)
    beats: set[object] = set()

    def has_had_time_to_write() -> bool:
        beats.update(queue.execute("select last_seen from outlive.workers where name = 'frozen'").fetchall())
        return len(beats) > 5

    eventually(has_had_time_to_write)
    assert queue.execute(ENDS).fetchall() == before
    (tmp_path / "lasts").touch()
    finished(lasts, State.SUCCEEDED)
    for job in (ends, lasts):
        assert [(one.outcome, one.worker) for one in attempts(queue, job)] == [
            (Outcome.LOST, "frozen"),
            (Outcome.SUCCEEDED, "other"),
        ]


@contextlib.contextmanager
def away(database_url: str, server_url: str) -> Iterator[None]:
    """No client can connect to the database, and those that had are cut off."""
    name = str(conninfo_to_dict(database_url)["dbname"])
    closing = sql.SQL("alter database {} allow_connections {}").format
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(closing(sql.Identifier(name), sql.SQL("false")))
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(closing(sql.Identifier(name), sql.SQL("true")))


def test_a_worker_that_cannot_renew_kills_its_children_before_their_leases_end(
    start, connect, database_url, server_url, tmp_path
):
    worker = start(lease_s="4", sweep_s="0.5")
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    (first,) = begun(tmp_path / "go")
    with away(database_url, server_url):
        eventually(lambda: not alive(first), within_s=4)
    (tmp_path / "go").touch()
    finished(job, State.SUCCEEDED)
    assert len(outcomes(connect(), job)) == 2
    assert worker.process.poll() is None


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
def test_a_database_that_is_away_for_longer_than_a_lease_costs_no_job_anything(
    start, connect, database_url, server_url, tmp_path, times
):
    """FAULTS 66. The worker gives the job back when the database is there again, or takes back the loss that a reaper
    has counted."""
    worker = start(lease_s="10", sweep_s="0.5")
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    for time in range(1, times + 1):
        begun(tmp_path / "go", times=time)
        with away(database_url, server_url):
            eventually(lambda: worker.log().count("its process is killed") == time, within_s=30)  # noqa: B023
            worker.says("lost the database")
    (tmp_path / "go").touch()
    finished(job, State.SUCCEEDED)
    connection = connect()
    spent = "select count(*), max(losses) from outlive.attempts where job_id = %s"
    assert connection.execute(spent, [job.id]).fetchall() == [(times + 1, 0)]
    assert connection.execute("select state from outlive.workers").fetchall() == [("active",)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lease_s": "10", "renew_s": "6"}, "would end healthy jobs; set renew_s to at most 3.33333"),
        ({"heartbeat_s": "60", "stale_s": "60"}, "every worker would be stale between two heartbeats"),
        ({"grace_s": "5"}, "children get SIGTERM 5 seconds before its end"),
    ],
)
def test_contradictory_intervals_are_refused_at_start(start, settings, reason):
    worker = start(wait=False, **settings)
    assert worker.process.wait(20) == 2
    assert reason in " ".join(worker.log().split())


def test_intervals_not_set_follow_from_those_that_are():
    assert config.load(environ={}).renew_s == 20
    assert config.load(environ={"OUTLIVE_LEASE_S": "8"}).renew_s == 2
