"""The lanes that a worker offers, the order of its claims, and the time of its next look."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

import pytest

from outlive.model import Claimed, Lane, LaneState, Sourced
from outlive.worker.claiming.lanes import NEEDS_SLOT, SATED, SLACK, LaneKey, Lanes
from tests import faults
from tests.driving.claims import CLAIMED
from tests.waiting import eventually

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
WARM = "warm"
SITES = (("urgent", 1), ("site", 5))


def found(*lanes: tuple[str, int]) -> Lanes:
    """Lanes without a source: their tasks and priorities."""
    known = Lanes()
    known.found([LaneState("default", "", task, priority, MOMENT, ready=True) for task, priority in lanes])
    return known


def kind(key: LaneKey) -> object:
    """The kinds that a worker with free slots knows: jobs of sources, of one warm task, and fresh ones."""
    if key.source:
        return ("source", key.priority)
    return key.task if key.task.startswith(WARM) else "fresh"


class Everything:
    def __contains__(self, task: object) -> bool:
        return True


def offered(lanes: Lanes, kind: Callable[[LaneKey], object] = kind, now: float = 0.0) -> list[Lane]:
    return lanes.offer(Everything(), kind, lambda key: 4, now)


def names(lanes: list[Lane]) -> list[tuple[str, int]]:
    return [(lane.source or lane.task, lane.priority) for lane in lanes]


def claimed(lane: Lane) -> Claimed:
    key = (lane.queue, lane.source, lane.task, lane.priority)
    return Claimed(1, uuid4(), 1, *key, MOMENT, 0, 0, 0, b"{}", None)


def test_a_source_is_waited_for_only_until_it_may_be_asked():
    lanes = Lanes()
    shop = LaneState("default", "shop", "visit", 5, datetime.now(UTC), ready=True)
    lanes.found_sourced(Sourced([shop], {}, None), ("", ""), 99.0)
    lanes.wait({"shop": 2.0, "elsewhere": 1.0}, now=100.0)
    assert lanes.opens_in_s(100.5) == 1.5
    assert lanes.opens_in_s(102.5) is None, "it may be asked now: a worker that does not ask is not to be hurried"


def test_a_lane_of_another_kind_is_not_passed_over_for_a_less_urgent_one():
    lanes = found((WARM, 0), ("fresh", 1), (WARM, 1), (WARM, 9))
    assert names(offered(lanes)) == [(WARM, 0), (WARM, 1)]
    assert names(offered(found((WARM, 0), (WARM, 9)))) == [(WARM, 0), (WARM, 9)]


def test_jobs_of_sources_are_claimed_in_the_order_of_their_priorities():
    lanes = found(("fresh", 3), ("fresh", 9))
    sourced = [LaneState("default", f"site-{n}", "visit", n, MOMENT, ready=True) for n in (1, 5)]
    lanes.found_sourced(Sourced(sourced, {}, None), ("", ""), 0.0)
    assert names(offered(lanes)) == [("site-1", 1)]
    lanes.wait({"site-1": 1.0}, now=0.0)
    assert names(offered(lanes)) == [("fresh", 3)]
    assert names(offered(lanes, now=1.5)) == [("site-1", 1)]


def test_nothing_is_given_ahead_of_something_more_urgent_that_has_no_slot():
    lanes = found((WARM, 5), ("fresh", 4), ("fresh", 5), (WARM, 6))

    def ahead(key: LaneKey) -> object:
        return "ahead" if key.task == WARM else NEEDS_SLOT

    assert names(offered(lanes, ahead)) == []
    lanes = found((WARM, 5), ("fresh", 5), (WARM, 6))
    assert names(offered(lanes, ahead)) == [(WARM, 5)]


def test_nothing_more_is_given_ahead_when_it_is_the_turn_of_a_lane_that_has_no_slot():
    lanes = found((WARM, 5), ("fresh", 5))

    def ahead(key: LaneKey) -> object:
        return "ahead" if key.task == WARM else NEEDS_SLOT

    [first] = offered(lanes, ahead)
    lanes.claimed([first], [claimed(first)] * 4, limit=4)
    assert names(offered(lanes, ahead)) == [], "the slots run empty"
    assert names(offered(lanes)) == [("fresh", 5)]


def test_a_lane_whose_children_have_enough_holds_back_only_what_is_less_urgent():
    def ahead(key: LaneKey) -> object:
        return "ahead" if key.task == WARM else SATED

    assert names(offered(found(("fed", 5), (WARM, 5), (WARM, 6)), ahead)) == [(WARM, 5)]
    assert names(offered(found(("fed", 4), (WARM, 5)), ahead)) == []


def test_the_lanes_of_a_paused_queue_are_not_offered_again():
    lanes = found(("fresh", 0), (WARM, 9))
    lanes.found([LaneState("default", "", WARM, 9, MOMENT, ready=True)], {"default"})
    assert names(offered(lanes)) == [(WARM, 9)]


def test_a_lane_that_was_emptied_keeps_some_slack_for_jobs_whose_transactions_commit_late():
    lanes = found(("few", 0), ("many", 5))
    both = offered(lanes)
    lanes.claimed(both, [claimed(both[0]), claimed(both[1])], limit=2)
    marks = {lane.task: lane.watermark for lane in offered(lanes)}
    assert marks == {"few": MOMENT - SLACK, "many": MOMENT}


def test_a_lane_that_ran_dry_goes_on_before_less_urgent_ones():
    lanes = found(("fresh", 0), (WARM, 9))
    urgent = offered(lanes)
    lanes.claimed(urgent, [], limit=4)
    assert names(offered(lanes)) == [("fresh", 0), (WARM, 9)]
    lanes.found([LaneState("default", "", WARM, 9, MOMENT, ready=True)])
    again = offered(lanes)
    assert names(again) == [("fresh", 0), (WARM, 9)], "also when a look has found it empty"
    lanes.claimed(again, [claimed(again[0])], limit=4)
    assert names(offered(lanes)) == [("fresh", 0)], "it has something again, and is claimed as its kind wants it"
    lanes.claimed(offered(lanes), [], limit=4)
    lanes.claimed(offered(lanes), [], limit=4)
    assert not lanes, "what ran dry keeps no worker from resting"


def test_lanes_of_one_priority_take_turns():
    lanes, tasks = Lanes(), ("a", "b", "c")
    states = [LaneState("default", "", task, 5, MOMENT, ready=True) for task in tasks]
    served = []
    for _ in range(6):
        lanes.found(states)  # A look does not start the turn again.
        first = offered(lanes)
        served.append(first[0].task)
        lanes.claimed(first, [claimed(first[0])], limit=1)
    assert served == [*tasks, *tasks]


def with_sources(lanes: Lanes, sources: int, priority: int = 5) -> Lanes:
    states = [LaneState("default", f"site-{n:04}", "visit", priority, MOMENT, ready=True) for n in range(sources)]
    lanes.found_sourced(Sourced(states, {}, None), ("", ""), 0.0)
    return lanes


@pytest.mark.fault(76)
def test_a_lane_without_a_source_gets_every_second_turn_beside_thousands_of_sources():
    lanes = with_sources(Lanes(), 3000)
    lanes.add([LaneKey("default", "", "fresh", 5)])
    served = []
    for _ in range(6):
        first = offered(lanes)
        served.append(first[0].source or first[0].task)
        lanes.claimed(first, [claimed(lane) for lane in first[:4]], limit=4)
    assert served == ["site-0000", "fresh", "site-0004", "fresh", "site-0008", "fresh"]


def test_a_lane_without_a_source_gets_its_turn_while_thousands_of_sources_admit_nothing():
    lanes = with_sources(Lanes(), 3000)
    lanes.add([LaneKey("default", "", "fresh", 5)])
    first = offered(lanes)
    lanes.wait({lane.source: 0.25 for lane in first}, now=0.0)
    lanes.claimed(first, [], limit=4)
    assert names(offered(lanes)) == [("fresh", 5)]


def test_more_urgent_jobs_of_sources_cost_less_urgent_ones_no_turn():
    lanes = found(("fresh", 5))
    sourced = [LaneState("default", name, "visit", priority, MOMENT, ready=True) for name, priority in SITES]
    lanes.found_sourced(Sourced(sourced, {}, None), ("", ""), 0.0)
    served = []
    for now in (0.0, 10.0, 20.0, 30.0):
        urgent = offered(lanes, now=now)
        lanes.wait({"urgent": 5.0}, now=now)
        lanes.claimed(urgent, [claimed(urgent[0])], limit=1)
        next_one = offered(lanes, now=now + 1.0)
        lanes.claimed(next_one, [claimed(next_one[0])], limit=1)
        served += names(urgent[:1]) + names(next_one[:1])
    assert served[::2] == [("urgent", 1)] * 4
    assert served[1::2] == [("fresh", 5), ("site", 5)] * 2


def test_a_lane_keeps_its_place_while_its_source_admits_others():
    lanes = Lanes()
    sourced = [LaneState("default", "shop", task, 5, MOMENT, ready=True) for task in ("visit", "buy")]
    lanes.found_sourced(Sourced(sourced, {}, None), ("", ""), 0.0)
    both = offered(lanes)
    lanes.claimed(both, [claimed(both[0])], limit=4)
    assert [lane.task for lane in offered(lanes)] == ["buy", "visit"]


def test_a_source_that_admits_all_is_asked_when_a_claim_finds_nothing_of_it():
    """It may be empty, or it must be asked by now."""
    lanes = Lanes()
    lane = LaneState("default", "shop", "visit", 5, MOMENT, ready=True, admits_all=True)
    lanes.found_sourced(Sourced([lane], {}, None), ("", ""), 0.0)
    (shop,) = offered(lanes)
    assert not shop.asks
    lanes.claimed([shop], [], limit=4)
    (shop,) = offered(lanes)
    assert shop.asks
    lanes.claimed([shop], [], limit=4)
    assert not lanes, "it was asked, and has no jobs"
    lanes.found_sourced(Sourced([lane], {}, None), ("", ""), 0.0)
    assert [lane.asks for lane in offered(lanes)] == [False], "a look finds out that it need not be asked"


def test_a_lane_that_is_empty_says_nothing_of_a_source_that_admits_other_jobs():
    lanes = Lanes()
    both = [LaneState("default", "shop", task, 5, MOMENT, ready=True, admits_all=True) for task in ("visit", "buy")]
    lanes.found_sourced(Sourced(both, {}, None), ("", ""), 0.0)
    first = offered(lanes)
    lanes.claimed(first, [claimed(first[0])], limit=4)
    assert [(lane.task, lane.asks) for lane in offered(lanes)] == [("visit", False)]


def test_a_look_through_some_sources_says_nothing_of_the_others():
    def states(*sources: str) -> list[LaneState]:
        return [LaneState("default", source, "visit", 5, MOMENT, ready=True) for source in sources]

    lanes = Lanes()
    lanes.found_sourced(Sourced(states("a", "b", "c"), {}, None), ("", ""), 0.0)
    lanes.found_sourced(Sourced(states(), {"b": 60.0}, ("default", "b")), ("default", "a"), 0.0)
    assert names(offered(lanes)) == [("a", 5), ("c", 5)]
    assert lanes.opens_at is None, "a source that stays closed for long is found by a look"
    lanes.found_sourced(Sourced(states("a"), {"c": 2.0}, None), ("", ""), 10.0)
    assert names(offered(lanes)) == [("a", 5)]
    assert lanes.opens_at == pytest.approx(12.0)


# The real thing


@pytest.mark.long
@pytest.mark.fault(65)
def test_jobs_are_claimed_in_the_order_of_their_priorities_whatever_their_kind(start, queue):
    queue.execute(CLAIMED)
    tasks = (
        faults.warm.using(queue="a"),
        faults.add.using(queue="b"),
        faults.add.using(source="open shop"),
        faults.work_a_little,
    )
    jobs = [task.using(priority=priority).job(n) for priority in (9, 0, 5, 1, 2) for n in range(8) for task in tasks]
    faults.app.enqueue_many(jobs)
    start(slots=2)
    finished = "select count(*) from outlive.attempts where state = 'succeeded'"
    eventually(lambda: queue.execute(finished).fetchone() == (len(jobs),), within_s=60, what="all are done")
    # Jobs of one claim have the same time: the worker sorts them.
    priorities = queue.values(
        "select j.priority from claimed c join outlive.attempts a using (token) join outlive.jobs j on j.id = a.job_id"
        " order by c.at, j.priority"
    )
    assert priorities == sorted(priorities)


@pytest.mark.fault(65)
def test_an_urgent_job_waits_for_no_backlog(start, queue):
    """Once the worker knows of it, every job that it claims is at least as urgent."""
    queue.execute(CLAIMED)
    faults.app.enqueue_many(faults.work_a_little.using(priority=9).job(n) for n in range(3000))
    start(slots=2)

    def done(many: int) -> bool:
        query = "select count(*) >= %s from outlive.attempts"
        return queue.execute(query, [many]).fetchone() == (True,)

    for n in range(1, 6):
        eventually(partial(done, 20 * n), within_s=30, what="it works")
        urgent = faults.add.using(priority=n % 3).enqueue(n)
        assert urgent.result(timeout=10) == n
    late = queue.execute(
        "select count(*) from claimed c join outlive.attempts a using (token) join outlive.jobs j on j.id = a.job_id"
        " where j.priority = 9 and exists (select from outlive.attempts u join outlive.jobs v on v.id = u.job_id"
        "   where v.priority < 9 and u.token > a.token and c.at > v.created_at + interval '1 s')"
    ).fetchone()
    assert late == (0,)


@pytest.mark.long
def test_a_job_of_another_task_gets_its_turn_beside_a_warm_backlog(start, queue):
    faults.app.enqueue_many(faults.warm.job(n) for n in range(30_000))
    start(slots=2)
    begun = "select count(*) > 100 from outlive.attempts"
    eventually(lambda: queue.execute(begun).fetchone() == (True,), within_s=30, what="it works")
    other = faults.add.enqueue(1, 1)
    assert other.result(timeout=10) == 2
    later = (
        "select exists (select from outlive.waiting) or exists (select from outlive.attempts a where a.started_at >"
        " (select b.ended_at from outlive.attempts b where b.job_id = %s))"
    )
    assert queue.execute(later, [other.id]).fetchone() == (True,), "the backlog was there when it ended"
