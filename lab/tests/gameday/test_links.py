"""Jobs that wait for others, batches, keys and schedules: each bug that their rules are there for, told as a story."""

from dataclasses import replace
from uuid import UUID

import pytest

from gameday.making import STEP_S, Story
from outlive_lab.gameday.history import Attempt, Links


@pytest.fixture
def story() -> Story:
    return Story()


def last(story: Story) -> Attempt:
    return story.attempts[-1]


def begin_early(story: Story, id: UUID) -> None:
    """The job began before everything else."""
    story.starts = [replace(one, at_s=0.0) if one.job == id else one for one in story.starts]


@pytest.mark.parametrize(
    ("bad", "on_failure", "outcomes", "place"),
    [
        (None, "block", ["succeeded"], None),
        ("give_up", "proceed", ["succeeded"], None),
        ("kill", "proceed", ["succeeded"], None),
        ("give_up", "cancel", ["cancelled"], None),
        ("kill", "block", [], "dependent"),
    ],
)
def test_a_job_that_waits_ends_as_those_that_it_waits_for_let_it(story, bad, on_failure, outcomes, place):
    needed = [story.job("succeeded")]
    if bad is not None:
        needed.append(story.job("crashed" if bad == "kill" else "failed", task=bad))
        if bad == "kill":
            story.places.append((needed[-1], "quarantined"))
    id = story.job(*outcomes, links=Links(after=tuple(needed), on_failure=on_failure))
    if place is not None:
        story.places.append((id, place))
    assert story.broken() == set()


def test_a_job_that_begins_before_another_has_ended_is_seen(story):
    needed = [story.job("succeeded"), story.job("succeeded")]
    id = story.job("succeeded", links=Links(after=tuple(needed)))
    story.starts[-1] = replace(story.starts[-1], at_s=story.attempts[1].ended_s - 0.001)
    assert story.broken() == {"begun too early"}
    begin_early(story, id)
    assert story.broken() == {"begun too early"}


@pytest.mark.parametrize("on_failure", ["block", "cancel"])
def test_a_job_that_begins_in_spite_of_a_failure_is_seen(story, on_failure):
    story.job("succeeded", links=Links(after=(story.job("failed", task="give_up"),), on_failure=on_failure))
    assert story.broken() == {"begun wrongly", "ended badly"}


@pytest.mark.parametrize("on_failure", ["proceed", "cancel"])
def test_a_release_that_is_forgotten_is_seen(story, on_failure):
    id = story.job(links=Links(after=(story.job("failed", task="give_up"),), on_failure=on_failure))
    story.places.append((id, "dependent"))
    assert story.broken() == {"not released"}


def test_a_job_that_is_cancelled_without_a_reason_ended_badly(story):
    story.job("cancelled", links=Links(after=(story.job("succeeded"),), on_failure="cancel"))
    assert story.broken() == {"ended badly"}


def test_a_batch_is_called_back_once_when_all_its_jobs_have_ended(story):
    good, bad, cancelled = story.batch(), story.batch(), story.batch(cancelled=True)
    for links in (good, bad, cancelled):
        story.job("failed", "succeeded", links=links)
    story.job("failed", task="give_up", links=bad)
    story.job("cancelled", links=cancelled)
    for links, event in ((good, "success"), (bad, "failure"), (cancelled, "failure")):
        story.call_back(links.batch, event)
        story.call_back(links.batch, "done")
    assert story.broken() == set()


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        (["success", "done", "done"], {"called back twice"}),
        (["success"], {"not called back"}),
        ([], {"not called back"}),
        (["failure", "done"], {"called back wrongly", "not called back"}),
    ],
)
def test_wrong_callbacks_are_seen(story, events, rules):
    links = story.batch()
    story.job("succeeded", links=links)
    for event in events:
        story.call_back(links.batch, event)
    assert story.broken() == rules


def test_a_batch_that_is_called_back_before_its_last_job_has_ended_is_seen(story):
    links = story.batch()
    story.job("succeeded", links=links)
    story.call_back(links.batch, "success")
    begin_early(story, story.call_back(links.batch, "done"))
    assert story.broken() == {"called back too early"}


def test_a_batch_that_is_called_back_while_a_job_goes_on_is_seen(story):
    links = story.batch()
    story.places.append((story.job(links=links), "waiting"))
    story.call_back(links.batch, "done")
    assert story.broken() == {"called back too early", "unfinished"}


def test_a_job_of_a_batch_that_was_not_cancelled_must_not_be(story):
    links = story.batch()
    story.job("cancelled", links=links)
    for event in ("failure", "done"):
        story.call_back(links.batch, event)
    assert story.broken() == {"ended badly"}


def overlap(story: Story, count: int, *, limit: int) -> None:
    """So many jobs of a key begin one after the other, and all run until the last of them has begun."""
    for _ in range(count):
        story.job("succeeded", links=Links(key="customer 7", concurrency=limit))
        story.change(last(story), ended_s=1000 * STEP_S)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_key_over_its_limit_is_seen(story, limit):
    overlap(story, limit, limit=limit)
    assert story.broken() == set()
    overlap(story, 1, limit=limit)
    assert story.broken() == {"over its limit"}


def test_a_job_that_still_works_after_its_end_in_the_database_counts(story):
    for _ in range(2):
        story.job("succeeded", links=Links(key="customer 7"))
    story.effects[0] = replace(story.effects[0], at_s=2 * STEP_S + 0.5)
    assert story.broken() == {"over its limit"}


def test_a_process_may_go_on_when_its_attempt_is_lost(story):
    """Its worker is frozen or dead, and the database has given its slot to another job."""
    story.history.short_leases.add("steady")
    story.history.outages.append((0.0, 1000.0))
    first = story.job("lost", task="note", links=Links(key="customer 7"))
    lost = last(story)
    story.job("succeeded", links=Links(key="customer 7"))
    for one in (lost, story.attempt(first, "succeeded")):
        story.change(one, losses=0)
    story.effects.append(replace(story.effects[-1], token=lost.token))
    assert story.broken() == set()


def test_each_second_of_a_schedule_has_one_job(story):
    for second in (100, 101, 102, 103):
        story.tick(second)
        story.tick(second + 50, "another")
    story.history.scheduled_s = 160.0
    assert story.broken() == {"not fired"}  # For too long: the first one stopped firing.
    story.history.scheduled_s = 110.0
    assert story.broken() == set()
    story.tick(103)
    assert story.broken() == {"fired twice"}
    story.tick(105)
    assert story.broken() == {"fired twice", "not fired"}


def test_a_schedule_that_never_fires_is_seen(story):
    story.schedules.add("every second")
    story.history.scheduled_s = 20.0
    assert story.broken() == set()
    story.history.scheduled_s = 100.0
    assert story.broken() == {"not fired"}
