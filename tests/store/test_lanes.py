"""Finding and claiming jobs: the order, the limits, the shares of workers, and that no job is claimed twice."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Claimed, Ended, LaneState
from tests.driving.making import (
    NOON,
    WORKER,
    Connect,
    claim,
    count,
    enqueue,
    lane,
    make,
    make_many,
    new_worker,
    plan,
    request,
    set_now,
    value,
)


def ids(claimed: list[Claimed]) -> list[UUID]:
    return [one.id for one in claimed]


# The claim


def test_lanes_are_taken_in_the_order_in_which_they_are_offered(connection: db.Connection) -> None:
    idle = make(connection, priority=9)
    urgent = make(connection, priority=0)
    offered = [lane(priority=0), lane(priority=9)]
    assert ids(claim(connection, offered, limit=1)) == [urgent]
    assert ids(claim(connection, offered, limit=1)) == [idle]


def test_an_urgent_job_leaves_no_room_for_others(connection: db.Connection) -> None:
    urgent = make_many(connection, 3, priority=0)
    make_many(connection, 3, priority=5)
    assert sorted(ids(claim(connection, [lane(priority=0), lane(priority=5)], limit=3))) == sorted(urgent)


def test_within_a_lane_the_longest_ready_comes_first(connection: db.Connection) -> None:
    set_now(connection)
    late, early, middle = (make(connection, run_at=NOON - timedelta(seconds=s)) for s in (1, 3, 2))
    assert [ids(claim(connection, limit=1)) for _ in range(3)] == [[early], [middle], [late]]


def test_no_lane_gives_more_than_its_quota(connection: db.Connection) -> None:
    for task in ("a", "b", "c"):
        make_many(connection, 10, task)
    offered = [lane("a", quota=2), lane("b", quota=5), lane("c", quota=1)]
    assert Counter(one.task for one in claim(connection, offered)) == {"a": 2, "b": 5, "c": 1}


def test_no_more_than_the_limit_comes_back_whatever_the_quotas(connection: db.Connection) -> None:
    for task in ("a", "b", "c"):
        make_many(connection, 10, task)
    claimed = claim(connection, [lane("a", quota=4), lane("b", quota=4), lane("c", quota=4)], limit=6)
    assert Counter(one.task for one in claimed) == {"a": 4, "b": 2}
    assert (count(connection, "running"), count(connection, "waiting")) == (6, 24)


@pytest.mark.parametrize(("quota", "limit"), [(0, 10), (10, 0)])
def test_a_quota_or_a_limit_of_zero_gives_nothing(connection: db.Connection, quota: int, limit: int) -> None:
    make(connection)
    assert claim(connection, [lane(quota=quota)], limit=limit) == []
    assert count(connection, "waiting") == 1


def test_without_a_lane_nothing_is_claimed(connection: db.Connection) -> None:
    make(connection)
    assert claim(connection, []) == []


@pytest.mark.parametrize(
    "other", [{"task": "other"}, {"queue": "other"}, {"source": "other"}, {"priority": 4}], ids=lambda o: next(iter(o))
)
def test_only_jobs_of_the_lane_are_claimed(connection: db.Connection, other: dict[str, Any]) -> None:
    make(connection, **other)
    assert claim(connection) == []
    assert len(claim(connection, [lane(**other)])) == 1


def test_a_job_of_the_future_is_claimed_only_when_its_time_has_come(connection: db.Connection) -> None:
    set_now(connection)
    job = make(connection, delay_s=60)
    set_now(connection, later_s=59.999)
    assert claim(connection) == []
    set_now(connection, later_s=60)
    assert ids(claim(connection)) == [job]


def test_before_its_watermark_a_lane_is_not_looked_at_and_from_the_start_it_is(connection: db.Connection) -> None:
    set_now(connection)
    before, at, after = (make(connection, run_at=NOON - timedelta(seconds=s)) for s in (11, 10, 9))
    mark = NOON - timedelta(seconds=10)
    assert ids(claim(connection, [lane(watermark=mark)])) == [at, after]
    assert claim(connection, [lane(watermark=mark)]) == []
    assert ids(claim(connection, [lane()])) == [before]


@pytest.mark.parametrize("mark", [None, NOON - timedelta(days=1)])
def test_a_claim_locks_only_the_jobs_that_it_returns(connect: Connect, mark: datetime | None) -> None:
    first, second = connect(), connect()
    set_now(first), set_now(second)
    for task in ("a", "b"):
        make_many(first, 50, task)
    offered = [lane("a", quota=20, watermark=mark), lane("b", quota=20, watermark=mark)]
    second.execute("set lock_timeout = '1s'")
    with first.transaction():
        mine = claim(first, offered, limit=30)
        theirs = claim(second, [lane("a", watermark=mark), lane("b", watermark=mark)])
    assert (len(mine), len(theirs)) == (30, 70)
    assert not {one.id for one in mine} & {one.id for one in theirs}


def test_the_jobs_of_a_claim_that_is_rolled_back_can_be_claimed_again(connect: Connect) -> None:
    first, second = connect(), connect()
    job = make(first)
    with first.transaction(force_rollback=True):
        assert ids(claim(first)) == [job]
    assert ids(claim(second)) == [job]


def test_a_claimed_job_brings_its_arguments_as_they_were_written(connection: db.Connection) -> None:
    make(connection, args=b'{"b":  1, "a": [1.0, "\\u00e9"]}', options={"timeout_s": 5})
    (claimed,) = claim(connection)
    assert claimed.args == b'{"b":  1, "a": [1.0, "\\u00e9"]}'
    assert claimed.options == b'{"timeout_s": 5}'
    assert (claimed.attempt, claimed.failures, claimed.crashes, claimed.losses) == (1, 0, 0, 0)


def test_stale_tokens_come_back_as_such_and_the_others_are_ended(connection: db.Connection) -> None:
    make_many(connection, 3)
    mine, lost, other = claim(connection)
    connection.execute("delete from outlive.running where token = %s", [lost.token])
    ended = [Ended(token) for token in (10**12, other.token, lost.token, mine.token)]
    turn = db.run(connection, store.end_and_claim(WORKER, ended))
    assert sorted(turn.stale) == [lost.token, 10**12]
    assert turn.claimed == []
    known = db.run(connection, store.ended([mine.token, lost.token, other.token]))
    assert known.keys() == {mine.token, other.token}


def test_stale_tokens_and_new_jobs_come_in_one_turn(connection: db.Connection) -> None:
    job = make(connection)
    turn = db.run(connection, store.end_and_claim(WORKER, [Ended(7)], [lane()], limit=8))
    assert (turn.stale, ids(turn.claimed)) == ([7], [job])


def test_a_token_of_another_worker_is_stale(connection: db.Connection) -> None:
    make(connection)
    (claimed,) = claim(connection)
    assert db.run(connection, store.end_and_claim(new_worker(), [Ended(claimed.token)])).stale == [claimed.token]
    assert count(connection, "attempts") == 0


@pytest.mark.parametrize(("workers", "jobs", "limit"), [(2, 20, 1), (8, 2000, 16)])
def test_each_job_is_claimed_exactly_once(connect: Connect, workers: int, jobs: int, limit: int) -> None:
    connections = [connect() for _ in range(workers)]
    made = make_many(connections[0], jobs)
    start = threading.Barrier(workers)

    def work(connection: db.Connection) -> list[UUID]:
        worker, done, ended = new_worker(), list[UUID](), list[Ended]()
        start.wait()
        while True:
            turn = db.run(connection, store.end_and_claim(worker, ended, [lane()], limit=limit))
            assert turn.stale == []
            if not turn.claimed and not ended:
                return done
            done += ids(turn.claimed)
            ended = [Ended(one.token) for one in turn.claimed]

    with ThreadPoolExecutor(workers) as threads:
        done = [job for part in threads.map(work, connections) for job in part]
    assert sorted(done) == sorted(made)
    assert (
        value(connections[0], "select count(*) from outlive.attempts where attempt = 1 and state = 'succeeded'") == jobs
    )
    assert (count(connections[0], "running"), count(connections[0], "waiting")) == (0, 0)


# The lanes


def found(connection: db.Connection, *tasks: str, queues: list[str] | None = None) -> list[LaneState]:
    sourced = db.run(connection, store.sourced_lanes(tasks or ("work",), queues))
    assert sourced.reached is None, "there are few sources"
    return [*db.run(connection, store.unsourced_lanes(tasks or ("work",), queues)).lanes, *sourced.lanes]


def test_every_lane_that_has_something_is_found_once(connection: db.Connection) -> None:
    expected = set()
    for queue in ("default", "slow"):
        for source in ("", "shop"):
            for task in ("a", "b", "work"):
                for priority in (0, 5, 9):
                    make_many(connection, 2, task, queue=queue, source=source, priority=priority)
                    expected.add((queue, source, task, priority))
    lanes = found(connection, "a", "b", "work")
    assert len(lanes) == len(expected)
    assert {(one.queue, one.source, one.task, one.priority) for one in lanes} == expected
    assert all(one.ready for one in lanes)


def test_an_empty_queue_has_no_lanes(connection: db.Connection) -> None:
    assert found(connection) == []


def test_lanes_of_foreign_tasks_are_left_out(connection: db.Connection) -> None:
    make(connection, "mine"), make(connection, "theirs")
    assert [one.task for one in found(connection, "mine", "unheard of")] == ["mine"]
    assert db.run(connection, store.unsourced_lanes([])).lanes == []
    assert db.run(connection, store.sourced_lanes([])).lanes == []


def test_a_worker_of_some_queues_finds_only_theirs(connection: db.Connection) -> None:
    make(connection), make(connection, queue="slow")
    assert [one.queue for one in found(connection, queues=["slow"])] == ["slow"]
    assert found(connection, queues=[]) == []


def test_a_paused_queue_is_left_out_until_it_is_resumed(connection: db.Connection) -> None:
    make(connection), make(connection, queue="slow")
    db.run(connection, store.pause_queue("slow"))
    assert [one.queue for one in found(connection)] == ["default"]
    assert db.run(connection, store.resume_queue("slow")) is True
    assert db.run(connection, store.resume_queue("slow")) is False
    assert [one.queue for one in found(connection)] == ["default", "slow"]


def test_a_queue_that_is_paused_twice_has_been_paused_since_the_first_time(connection: db.Connection) -> None:
    set_now(connection)
    db.run(connection, store.pause_queue("slow"))
    set_now(connection, later_s=60)
    db.run(connection, store.pause_queue("slow"))
    assert value(connection, "select paused_at from outlive.queues") == NOON


def test_the_lanes_of_a_disabled_or_paused_source_are_left_out(connection: db.Connection) -> None:
    set_now(connection)
    for source in ("disabled", "paused", "open", "unknown", ""):
        make(connection, source=source)
    connection.execute("delete from outlive.sources where name = 'unknown'")
    db.run(connection, store.pause_source("disabled"))
    connection.execute("update outlive.sources set paused_until = outlive.now() where name = 'open'")
    connection.execute(
        "update outlive.sources set paused_until = outlive.now() + interval '5 min' where name = 'paused'"
    )
    assert {one.source for one in found(connection)} == {"", "open", "unknown"}
    set_now(connection, later_s=300)
    assert {one.source for one in found(connection)} == {"", "open", "unknown", "paused"}


def test_a_suspect_of_a_closed_source_is_not_claimed_either(connection: db.Connection) -> None:
    set_now(connection)
    suspect = make(connection, source="shop", options={"max_losses": 2})
    claim(connection, [lane(source="shop")], lease_s=1)
    connection.execute("update outlive.sources set paused_until = outlive.now() + interval '5 min'")
    set_now(connection, later_s=2)
    assert [one.id for one in db.run(connection, store.expire())] == [suspect]
    assert db.run(connection, store.claim_suspect(WORKER, tasks=["work"])) == []
    set_now(connection, later_s=300)
    assert ids(db.run(connection, store.claim_suspect(WORKER, tasks=["work"]))) == [suspect]


def test_a_lane_of_the_future_is_told_as_such(connection: db.Connection) -> None:
    set_now(connection)
    make(connection, delay_s=60)
    (future,) = found(connection)
    assert (future.ready, future.ready_at) == (False, NOON + timedelta(seconds=60))
    make(connection)
    (now,) = found(connection)
    assert (now.ready, now.ready_at) == (True, NOON)


def scans_of_lanes(connection: db.Connection) -> tuple[list[dict[str, Any]], object]:
    """How the lanes without a source are found: the scans, and the rows that they read."""
    statement = store.unsourced_lanes(["work"])
    nodes = plan(connection, statement.text, statement.parameters)
    scans = [node for node in nodes if node.get("Alias", "")[:1] == "w"]
    # Before version 18, Postgres rounds the rows of each loop.
    rounding = 0.1 if connection.info.server_version >= 180000 else 1.1
    return scans, pytest.approx(sum(node["Actual Rows"] * node["Actual Loops"] for node in scans), abs=rounding)


def test_many_jobs_of_the_future_cost_the_lanes_nothing(connection: db.Connection) -> None:
    """Each lane costs one step of the index, however many jobs it has."""
    set_now(connection)
    for n in range(3):
        enqueue(connection, [request("later", delay_s=60, queue=f"q{n}") for _ in range(2000)])
    scans, rows = scans_of_lanes(connection)
    assert {node["Node Type"] for node in scans} == {"Index Only Scan"}
    # One row for each queue, and one for each lane.
    assert rows == 6


def test_many_sources_cost_the_lanes_without_a_source_nothing(connection: db.Connection) -> None:
    enqueue(connection, [request(source=f"site-{n:04}") for n in range(2000)])
    make(connection), make(connection, queue="other")
    _, rows = scans_of_lanes(connection)
    assert rows == 4
    lanes = db.run(connection, store.unsourced_lanes(["work"])).lanes
    assert [(one.queue, one.source) for one in lanes] == [("default", ""), ("other", "")]


def test_sources_are_looked_through_in_parts_and_closed_ones_cost_one_step(connection: db.Connection) -> None:
    set_now(connection)
    names = [f"site-{n}" for n in range(10)]
    enqueue(connection, [request(source=name, queue=queue) for name in names for queue in ("a", "b", "foreign")])
    connection.execute("update outlive.sources set enabled = false where name in ('site-0', 'site-4')")
    connection.execute(
        "update outlive.sources set rate_limit_per_minute = 6, full_at = outlive.now() + interval '7 s'"
        " where name = 'site-7'"
    )
    after, seen, waits, parts = ("", ""), list[tuple[str, str]](), dict[str, float](), 0
    while True:
        part = db.run(connection, store.sourced_lanes(["work"], ["a", "b"], after=after, batch=8))
        seen += [(one.queue, one.source) for one in part.lanes]
        waits |= part.waits_s
        parts += 1
        if part.reached is None:
            break
        assert len(part.lanes) <= 8
        after = part.reached
    closed = ("site-0", "site-4", "site-7")
    assert seen == [(queue, name) for queue in ("a", "b") for name in names if name not in closed]
    assert waits == {"site-0": 30.0, "site-4": 30.0, "site-7": 7.0}
    assert parts == 3
