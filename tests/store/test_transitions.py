"""Every event from every state, compared with the one page that says what is legal."""

import pytest

from outlive import states
from outlive.states import Outcome, State
from tests.store.acting import (
    BERT,
    CARL,
    ENDS,
    EVENTS,
    FENCED,
    NOW,
    TOMORROW,
    Place,
    Scene,
    arrange,
    assert_sound,
    bring,
    clear,
    contents,
    fire,
    legal,
)
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

ARROWS = [(t.event, before, t.after) for t in states.TRANSITIONS for before in t.before]


def circumstances(before: State | None, after: State | None) -> dict[str, object]:
    """The options of a job that make an event which may end in several states end in this one."""
    if before is not State.RUNNING:
        return {}
    if after is State.FAILED:
        return {"max_attempts": 1, "on_worker_death": "fail"}
    if after is State.QUARANTINED:
        return {"max_crashes": 1, "max_losses": 1}
    return {}


def named(value: object) -> str:
    return str(value or Place.NOWHERE)


def test_every_outcome_that_a_worker_can_report_is_tried():
    assert {end["outcome"] for end in ENDS.values()} == set(Outcome) - {Outcome.LOST}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_does_what_the_page_says_and_otherwise_nothing(queue, event):
    for place in Place:
        clear(queue)
        queue.set_now(NOW)
        scene = bring(queue, place)
        queue.set_now(TOMORROW)  # Leases are over, and backoffs too.
        arrange(queue, scene, event)
        before = contents(queue)
        fire(queue, event, scene)
        if expected := legal(event, place):
            assert queue.state_of(scene.job) in expected, place
            assert contents(queue) != before, place
        else:
            assert contents(queue) == before, place
        assert_sound(queue)


@pytest.mark.parametrize(("event", "before", "after"), ARROWS, ids=named)
def test_every_arrow_of_the_page_is_taken(queue, event, before, after):
    special = {"claim_suspect": Place.SUSPECT, "unblock": Place.DEPENDENT, "abandon": Place.DEPENDENT}
    place = special.get(event) or (Place(before) if before else Place.NOWHERE)
    # A job that failed before is retryable wherever it would otherwise be pending.
    failed = after is State.RETRYABLE and event in ("hand_back", "expire", "reap", "release")
    lowered = before in (State.PENDING, State.RETRYABLE) and after is State.QUARANTINED
    ended_before = "fail" if failed else "crash" if lowered and place is Place.SUSPECT else None
    scene = bring(queue, place, options=circumstances(before, after), ended_before=ended_before)
    queue.set_now(TOMORROW)
    arrange(queue, scene, event)
    if lowered:
        queue.register_task(max_crashes=1)
    if event in ("retry", "rerun") and after is State.BLOCKED:
        arrange(queue, scene, "retry_after")
    if (event, after) == ("enqueue_after", State.CANCELLED):
        fire(queue, "abandon", scene)
    if (before, after) == (State.RUNNING, State.CANCELLED):
        fire(queue, "cancel", scene)
    fire(queue, event, scene)
    assert queue.state_of(scene.job) is after
    assert_sound(queue)


@pytest.mark.parametrize("event", sorted(FENCED))
def test_a_stale_attempt_changes_nothing_of_a_reclaimed_job(queue, event):
    scene = bring(queue, Place.RUNNING)
    fire(queue, "hand_back", scene)
    fire(queue, "claim", scene)
    queue.set_now(TOMORROW)
    arrange(queue, scene, event)
    before = contents(queue)
    for worker in (scene.worker, BERT):
        fire(queue, event, Scene(scene.job, worker, scene.token))
    assert contents(queue) == before


@pytest.mark.parametrize("event", sorted(FENCED))
def test_the_right_token_in_another_workers_hand_changes_nothing(queue, event):
    scene = bring(queue, Place.RUNNING)
    queue.set_now(TOMORROW)
    arrange(queue, scene, event)
    before = contents(queue)
    fire(queue, event, Scene(scene.job, CARL, scene.token))
    assert contents(queue) == before
