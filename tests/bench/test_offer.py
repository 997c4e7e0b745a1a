"""Lanes are offered in turn, from their watermarks."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from outlive import store
from outlive.lab.bench.offer import AT_ONCE, Offer
from outlive.model import Claimed, Lane, LaneState

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def an_offer(*, limit: int, lanes: int) -> Offer:
    offer = Offer(limit)
    offer.refresh(LaneState("queue", f"source-{n}", "task", 5, MOMENT, True) for n in range(lanes))
    return offer


def claimed(lane: Lane, number: int) -> list[Claimed]:
    """So many of the lane's jobs, a second apart."""
    return [
        Claimed(
            token=n,
            id=uuid4(),
            attempt=1,
            queue=lane.queue,
            source=lane.source,
            task=lane.task,
            priority=lane.priority,
            ready_at=MOMENT + n * timedelta(seconds=1),
            failures=0,
            crashes=0,
            losses=0,
            args=b"{}",
            options=None,
        )
        for n in range(number)
    ]


def taken(offer: Offer, numbers: list[int], *, at_s: float) -> list[Lane]:
    """Offer, claim so many of each lane, and learn from it."""
    offered = offer.next(at_s)
    jobs = [job for lane, number in zip(offered, numbers, strict=False) for job in claimed(lane, number)]
    offer.learn(offered, jobs, began_s=at_s, ended_s=at_s + 1.0)
    return offered


def test_lanes_that_were_not_reached_come_first_next_time() -> None:
    offer = an_offer(limit=AT_ONCE, lanes=100)

    assert [lane.source for lane in taken(offer, [1] * AT_ONCE, at_s=0.0)] == [f"source-{n}" for n in range(AT_ONCE)]
    assert offer.next(1.0)[0].source == f"source-{AT_ONCE}"


def test_a_full_pick_moves_the_watermark_to_the_last_job_less_the_slack() -> None:
    offer = an_offer(limit=3, lanes=1)

    taken(offer, [3], at_s=0.0)

    assert [lane.mark for lane in offer.next(1.0)] == [MOMENT + timedelta(seconds=2) - store.WATERMARK_SLACK]


def test_a_short_pick_from_a_watermark_is_followed_by_one_from_the_start() -> None:
    offer = an_offer(limit=3, lanes=1)
    taken(offer, [3], at_s=0.0)

    taken(offer, [2], at_s=1.0)

    assert [lane.mark for lane in offer.next(2.0)] == [None]


def test_a_lane_that_is_short_from_the_start_is_empty() -> None:
    offer = an_offer(limit=3, lanes=1)

    taken(offer, [2], at_s=0.0)

    assert offer.next(1.0) == []


def test_looking_from_the_start_again_costs_a_twentieth_of_the_time_at_most() -> None:
    offer = an_offer(limit=1, lanes=1)
    taken(offer, [1], at_s=0.0)

    marks = [taken(offer, [1], at_s=at_s)[0].mark for at_s in (1.0, 20.9, 21.0)]

    assert [mark is None for mark in marks] == [False, False, True]
