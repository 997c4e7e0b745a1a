"""The checker finds every job that is charged with what a stranger did, and only those."""

import pytest

from gameday.making import VICTIM, Story
from outlive_lab.gameday.history import Kind

SOMEWHERE = "gameday on another worker"


@pytest.fixture
def story() -> Story:
    """A job of a worker with a short lease is lost, counted, and then succeeds."""
    told = Story()
    told.history.short_leases.add(VICTIM)
    lost = told.job("lost", worker=VICTIM)
    told.attempt(lost, "succeeded")
    return told


def not_counted(story: Story) -> Story:
    """The same without the charge."""
    for one in list(story.attempts):
        story.change(one, losses=0)
    return story


def strike(story: Story, kind: Kind) -> None:
    """A fault in the middle of the attempt that is lost."""
    loss = story.attempts[0]
    at_s = loss.ended_s - 0.5
    if kind in (Kind.OUTAGE, Kind.READ_ONLY):
        story.fault(kind, at_s=at_s, worker="")
        story.history.outages.append((at_s, loss.ended_s))
    elif kind is Kind.MACHINE:
        story.fault(kind, at_s=at_s, worker="")
        story.history.faults[-1].lasted_s = 0.4
    else:
        story.fault(kind, at_s=at_s)


@pytest.mark.parametrize("kind", [Kind.OOM, Kind.ZYGOTE])
def test_the_death_of_a_zygote_explains_no_loss(story, kind):
    strike(story, kind)
    assert story.broken() == {"innocent charged", "given up wrongly"}
    assert not_counted(story).broken() == {"given up wrongly"}


@pytest.mark.parametrize("kind", [Kind.OUTAGE, Kind.READ_ONLY, Kind.MACHINE])
def test_a_loss_that_an_outage_or_a_frozen_machine_caused_must_not_count(story, kind):
    strike(story, kind)
    assert story.broken() == {"innocent charged"}
    assert not_counted(story).broken() == set()


@pytest.mark.parametrize("kind", [Kind.SUPERVISOR, Kind.TREE, Kind.EVERYBODY, Kind.PAUSE])
def test_a_loss_counts_if_the_worker_was_killed_or_frozen_past_its_leases(story, kind):
    strike(story, kind)
    assert story.broken() == set()


def test_a_claim_on_its_way_when_its_worker_is_killed_is_explained_by_that(story):
    story.fault(Kind.TREE, at_s=(story.attempts[0].started_s or 0.0) - 0.02)
    assert story.broken() == set()


def test_a_kill_of_another_worker_or_at_another_time_charges_no_job(story):
    strike(story, Kind.OUTAGE)
    story.fault(Kind.SUPERVISOR, at_s=story.attempts[0].ended_s - 0.5, worker=SOMEWHERE)
    story.fault(Kind.ZYGOTE, at_s=story.attempts[0].ended_s + 1.0)
    assert story.broken() == {"innocent charged"}


@pytest.mark.parametrize(("killed_after_s", "broken"), [(6.5, set()), (8.5, {"innocent charged"})])
def test_a_worker_that_is_killed_before_it_can_write_again_takes_no_loss_back(story, killed_after_s, broken):
    """The machine sleeps for 4 s after the lease, and the database is read-only until 1 s later."""
    lost_s = story.attempts[0].ended_s
    story.fault(Kind.MACHINE, at_s=lost_s - 1.0, worker="")
    story.history.faults[-1].lasted_s = 5.0
    story.history.outages.append((lost_s + 3.0, lost_s + 5.0))
    story.fault(Kind.SUPERVISOR, at_s=lost_s + killed_after_s)
    assert story.broken() == broken


@pytest.mark.parametrize("outcome", ["timed_out", "out_of_memory"])
def test_a_job_of_a_frozen_machine_did_not_take_too_long_and_ate_no_memory(story, outcome):
    strike(story, Kind.MACHINE)
    not_counted(story).job(outcome, "succeeded", task="pace")
    assert story.broken() == {"innocent charged"}


def test_three_kills_of_workers_put_no_innocent_into_quarantine(story):
    strike(story, Kind.SUPERVISOR)
    id = story.job(task="pace")
    for _ in range(3):
        loss = story.attempt(id, "lost", worker=VICTIM)
        story.fault(Kind.SUPERVISOR, at_s=loss.ended_s - 0.5)
    assert story.broken() == {"lost"}  # It must be somewhere, of course.
    story.change(loss, state="quarantined")
    story.places.append((id, "quarantined"))
    assert story.broken() == {"innocent charged", "ended badly", "held"}


def test_a_job_that_kills_its_process_is_quarantined(story):
    strike(story, Kind.SUPERVISOR)
    id = story.job("crashed", task="kill")
    story.places.append((id, "quarantined"))
    assert story.broken() == set()
