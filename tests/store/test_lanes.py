"""Finding and claiming jobs: the order, the limits, the shares of workers, and that no job is claimed twice."""

from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import store
from outlive.model import Claimed, Ended, LaneState
from tests.driving.making import NOON, WORKER, Queue, lane, request


def ids(claimed: list[Claimed]) -> list[UUID]:
    return [one.id for one in claimed]


# The claim


def test_lanes_are_taken_in_the_order_in_which_they_are_offered(queue):
    idle = queue.make(priority=9)
    urgent = queue.make(priority=0)
    offered = [lane(priority=0), lane(priority=9)]
    assert ids(queue.claim(offered, limit=1)) == [urgent]
    assert ids(queue.claim(offered, limit=1)) == [idle]


def test_within_a_lane_the_longest_ready_comes_first(queue):
    queue.set_now()
    late, early, middle = (queue.make(run_at=NOON - timedelta(seconds=s)) for s in (1, 3, 2))
    assert [ids(queue.claim(limit=1)) for _ in range(3)] == [[early], [middle], [late]]


def test_no_more_than_the_limit_comes_back_whatever_the_quotas(queue):
    for task in ("a", "b", "c"):
        queue.make_many(10, task)
    claimed = queue.claim([lane("a", quota=4), lane("b", quota=4), lane("c", quota=4)], limit=6)
    assert Counter(one.task for one in claimed) == {"a": 4, "b": 2}
    assert (queue.count("running"), queue.count("waiting")) == (6, 24)


@pytest.mark.parametrize(
    "other", [{"task": "other"}, {"queue": "other"}, {"source": "other"}, {"priority": 4}], ids=lambda o: next(iter(o))
)
def test_only_jobs_of_the_lane_are_claimed(queue, other):
    queue.make(**other)
    assert queue.claim() == []
    assert len(queue.claim([lane(**other)])) == 1


def test_before_its_watermark_a_lane_is_not_looked_at_and_from_the_start_it_is(queue):
    queue.set_now()
    before, at, after = (queue.make(run_at=NOON - timedelta(seconds=s)) for s in (11, 10, 9))
    mark = NOON - timedelta(seconds=10)
    assert ids(queue.claim([lane(watermark=mark)])) == [at, after]
    assert queue.claim([lane(watermark=mark)]) == []
    assert ids(queue.claim([lane()])) == [before]


@pytest.mark.parametrize("mark", [None, NOON - timedelta(days=1)])
def test_a_claim_locks_only_the_jobs_that_it_returns(connect, mark):
    first, second = connect(), connect()
    first.set_now(), second.set_now()
    for task in ("a", "b"):
        first.make_many(50, task)
    offered = [lane("a", quota=20, watermark=mark), lane("b", quota=20, watermark=mark)]
    second.execute("set lock_timeout = '1s'")
    with first.transaction():
        mine = first.claim(offered, limit=30)
        theirs = second.claim([lane("a", watermark=mark), lane("b", watermark=mark)])
    assert (len(mine), len(theirs)) == (30, 70)
    assert not {one.id for one in mine} & {one.id for one in theirs}


def test_a_claimed_job_brings_its_arguments_as_they_were_written(queue):
    queue.make(args=b'{"b":  1, "a": [1.0, "\\u00e9"]}', options={"timeout_s": 5})
    (claimed,) = queue.claim()
    assert claimed.args == b'{"b":  1, "a": [1.0, "\\u00e9"]}'
    assert claimed.options == b'{"timeout_s": 5}'
    assert (claimed.attempt, claimed.failures, claimed.crashes, claimed.losses) == (1, 0, 0, 0)


def test_stale_tokens_and_new_jobs_come_in_one_turn(queue):
    job = queue.make()
    turn = queue.run(store.end_and_claim(WORKER, [Ended(7)], [lane()], limit=8))
    assert (turn.refused, ids(turn.claimed)) == ([7], [job])


# The lanes


def found(queue: Queue, *tasks: str, queues: list[str] | None = None) -> list[LaneState]:
    sourced = queue.run(store.sourced_lanes(tasks or ("work",), queues))
    assert sourced.reached is None, "there are few sources"
    return [*queue.run(store.unsourced_lanes(tasks or ("work",), queues)).lanes, *sourced.lanes]


def test_every_lane_that_has_something_is_found_once(connection):
    expected = set()
    for queue in ("default", "slow"):
        for source in ("", "shop"):
            for task in ("a", "b", "work"):
                for priority in (0, 5, 9):
                    connection.make_many(2, task, queue=queue, source=source, priority=priority)
                    expected.add((queue, source, task, priority))
    lanes = found(connection, "a", "b", "work")
    assert len(lanes) == len(expected)
    assert {(one.queue, one.source, one.task, one.priority) for one in lanes} == expected
    assert all(one.ready for one in lanes)


def test_lanes_of_foreign_tasks_are_left_out(queue):
    queue.make("mine"), queue.make("theirs")
    assert [one.task for one in found(queue, "mine", "unheard of")] == ["mine"]
    assert queue.run(store.unsourced_lanes([])).lanes == []
    assert queue.run(store.sourced_lanes([])).lanes == []


def test_a_worker_of_some_queues_finds_only_theirs(queue):
    queue.make(), queue.make(queue="slow")
    assert [one.queue for one in found(queue, queues=["slow"])] == ["slow"]
    assert found(queue, queues=[]) == []


def test_a_queue_that_is_paused_twice_has_been_paused_since_the_first_time(queue):
    queue.set_now()
    queue.run(store.pause_queue("slow"))
    queue.set_now(later_s=60)
    queue.run(store.pause_queue("slow"))
    assert queue.value("select paused_at from outlive.queues") == NOON


def test_the_lanes_of_a_disabled_or_paused_source_are_left_out(queue):
    queue.set_now()
    for source in ("disabled", "paused", "open", "unknown", ""):
        queue.make(source=source)
    queue.execute("delete from outlive.sources where name = 'unknown'")
    queue.run(store.pause_source("disabled"))
    queue.execute("update outlive.sources set paused_until = outlive.now() where name = 'open'")
    queue.execute("update outlive.sources set paused_until = outlive.now() + interval '5 min' where name = 'paused'")
    assert {one.source for one in found(queue)} == {"", "open", "unknown"}
    queue.set_now(later_s=300)
    assert {one.source for one in found(queue)} == {"", "open", "unknown", "paused"}


def test_a_suspect_of_a_closed_source_is_not_claimed_either(queue):
    queue.set_now()
    suspect = queue.make(source="shop", options={"max_losses": 2})
    queue.claim([lane(source="shop")], lease_s=1)
    queue.execute("update outlive.sources set paused_until = outlive.now() + interval '5 min'")
    queue.set_now(later_s=2)
    assert [one.id for one in queue.run(store.expire())] == [suspect]
    assert queue.run(store.claim_suspect(WORKER, tasks=["work"])) == []
    queue.set_now(later_s=300)
    assert ids(queue.run(store.claim_suspect(WORKER, tasks=["work"]))) == [suspect]


def test_a_lane_of_the_future_is_told_as_such(queue):
    queue.set_now()
    queue.make(delay_s=60)
    (future,) = found(queue)
    assert (future.ready, future.ready_at) == (False, NOON + timedelta(seconds=60))
    queue.make()
    (now,) = found(queue)
    assert (now.ready, now.ready_at) == (True, NOON)


def scans_of_lanes(queue: Queue) -> tuple[list[dict[str, Any]], object]:
    """How the lanes without a source are found: the scans, and the rows that they read."""
    statement = store.unsourced_lanes(["work"])
    nodes = queue.plan(statement.text, statement.parameters)
    scans = [node for node in nodes if node.get("Alias", "")[:1] == "w"]
    # Before version 18, Postgres rounds the rows of each loop.
    rounding = 0.1 if queue.info.server_version >= 180000 else 1.1
    return scans, pytest.approx(sum(node["Actual Rows"] * node["Actual Loops"] for node in scans), abs=rounding)


def test_many_jobs_of_the_future_cost_the_lanes_nothing(queue):
    """Each lane costs one step of the index, however many jobs it has."""
    queue.set_now()
    for n in range(3):
        queue.enqueue([request("later", delay_s=60, queue=f"q{n}") for _ in range(2000)])
    scans, rows = scans_of_lanes(queue)
    assert {node["Node Type"] for node in scans} == {"Index Only Scan"}
    # One row for each queue, and one for each lane.
    assert rows == 6


def test_many_sources_cost_the_lanes_without_a_source_nothing(queue):
    queue.enqueue([request(source=f"site-{n:04}") for n in range(2000)])
    queue.make(), queue.make(queue="other")
    _, rows = scans_of_lanes(queue)
    assert rows == 4
    lanes = queue.run(store.unsourced_lanes(["work"])).lanes
    assert [(one.queue, one.source) for one in lanes] == [("default", ""), ("other", "")]


def test_sources_are_looked_through_in_parts_and_closed_ones_cost_one_step(connection):
    connection.set_now()
    names = [f"site-{n}" for n in range(10)]
    connection.enqueue([request(source=name, queue=queue) for name in names for queue in ("a", "b", "foreign")])
    connection.execute("update outlive.sources set enabled = false where name in ('site-0', 'site-4')")
    connection.execute(
        "update outlive.sources set rate_limit_per_minute = 6, full_at = outlive.now() + interval '7 s'"
        " where name = 'site-7'"
    )
    after, seen, waits, parts = ("", ""), list[tuple[str, str]](), dict[str, float](), 0
    while True:
        part = connection.run(store.sourced_lanes(["work"], ["a", "b"], after=after, batch=8))
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


def test_thousands_of_queues_without_sources_are_no_step_of_the_search_for_sources(queue):
    queue.enqueue([request(queue=f"q{n:04}") for n in range(2000)])
    queue.make(queue="q1000", source="shop")
    found = queue.run(store.sourced_lanes(["work"], batch=3))
    assert [(one.queue, one.source) for one in found.lanes] == [("q1000", "shop")]
    assert found.reached is None


def test_a_claim_passes_over_the_jobs_of_another_claim_without_trying_their_locks(queue, connect):
    """To try a lock reads the job's page once more, and sixteen workers would do little else."""
    queue.make_many(3000)
    other = connect()
    other.execute("begin")
    theirs = ids(other.claim([lane(quota=2500)], limit=2500))
    queue.make()  # A later transaction has ended: only then does a snapshot name the earlier ones that go on.
    claim = b"""explain (analyze, buffers, format json) select * from outlive.claim_lanes(
      $1, array['default'], array[''], array['work'], array[5::smallint], array[null::timestamptz], array[10], 10, 60,
      true)"""
    [[(found,)]] = psycopg.RawCursor(queue).execute(claim, [WORKER]).fetchall()
    assert found["Plan"]["Actual Rows"] == 10
    assert found["Plan"]["Shared Hit Blocks"] < 2500
    assert not set(theirs) & set(queue.values("select id from outlive.running"))
    other.execute("rollback")
    assert len(queue.claim([lane(quota=3000)], limit=3000)) == 2991
