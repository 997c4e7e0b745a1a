"""Every event from every state, compared with the one page that says what is legal."""

import pytest

from outlive import db, states
from outlive.states import Outcome, State
from tests.driving.making import register_task, set_now, state_of
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

ARROWS = [(t.event, before, after) for t in states.TRANSITIONS for before in t.before for after in t.after]


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


def test_every_outcome_that_a_worker_can_report_is_tried() -> None:
    assert {end["outcome"] for end in ENDS.values()} == set(Outcome) - {Outcome.LOST}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_does_what_the_page_says_and_otherwise_nothing(connection: db.Connection, event: str) -> None:
    for place in Place:
        clear(connection)
        set_now(connection, NOW)
        scene = bring(connection, place)
        set_now(connection, TOMORROW)  # Leases are over, and backoffs too.
        arrange(connection, scene, event)
        before = contents(connection)
        fire(connection, event, scene)
        if expected := legal(event, place):
            assert state_of(connection, scene.job) in expected, place
            assert contents(connection) != before, place
        else:
            assert contents(connection) == before, place
        assert_sound(connection)


@pytest.mark.parametrize(("event", "before", "after"), ARROWS, ids=named)
def test_every_arrow_of_the_page_is_taken(
    connection: db.Connection, event: str, before: State | None, after: State | None
) -> None:
    special = {"claim_suspect": Place.SUSPECT, "unblock": Place.DEPENDENT, "abandon": Place.DEPENDENT}
    place = special.get(event) or (Place(before) if before else Place.NOWHERE)
    # A job that failed before is retryable wherever it would otherwise be pending.
    failed = after is State.RETRYABLE and event in ("hand_back", "expire", "reap", "release")
    lowered = before in (State.PENDING, State.RETRYABLE) and after is State.QUARANTINED
    ended_before = "fail" if failed else "crash" if lowered and place is Place.SUSPECT else None
    scene = bring(connection, place, options=circumstances(before, after), ended_before=ended_before)
    set_now(connection, TOMORROW)
    arrange(connection, scene, event)
    if lowered:
        register_task(connection, max_crashes=1)
    if (event, after) == ("enqueue_after", State.CANCELLED):
        fire(connection, "abandon", scene)
    if (before, after) == (State.RUNNING, State.CANCELLED):
        fire(connection, "cancel", scene)
    fire(connection, event, scene)
    assert state_of(connection, scene.job) is after
    assert_sound(connection)


@pytest.mark.parametrize("event", sorted(FENCED))
def test_a_stale_attempt_changes_nothing_of_a_reclaimed_job(connection: db.Connection, event: str) -> None:
    scene = bring(connection, Place.RUNNING)
    fire(connection, "hand_back", scene)
    fire(connection, "claim", scene)
    set_now(connection, TOMORROW)
    arrange(connection, scene, event)
    before = contents(connection)
    for worker in (scene.worker, BERT):
        fire(connection, event, Scene(scene.job, worker, scene.token))
    assert contents(connection) == before


@pytest.mark.parametrize("event", sorted(FENCED))
def test_the_right_token_in_another_workers_hand_changes_nothing(connection: db.Connection, event: str) -> None:
    scene = bring(connection, Place.RUNNING)
    set_now(connection, TOMORROW)
    arrange(connection, scene, event)
    before = contents(connection)
    fire(connection, event, Scene(scene.job, CARL, scene.token))
    assert contents(connection) == before
