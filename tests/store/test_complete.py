"""outlive.complete: a job's effects and its completion commit together or not at all, and hold up no other."""

from collections.abc import Callable

import psycopg
import pytest

from outlive import db, store
from outlive.errors import StaleAttempt
from outlive.states import Outcome, State
from tests.driving.making import claim, make, set_now, state_of
from tests.store.acting import (
    ANNA,
    BERT,
    NOW,
    TOMORROW,
    Place,
    Scene,
    bring,
    complete,
    contents,
    end_by,
    fire,
)

Connect = Callable[[], db.Connection]


@pytest.fixture
def own(connect: Connect) -> db.Connection:
    """The connection of a job, with a table of its own. It never waits longer than a second."""
    connection = connect()
    connection.execute("create table effects (what text)")
    connection.execute("set lock_timeout = '1s'")
    set_now(connection, NOW)
    return connection


@pytest.fixture
def service(connect: Connect) -> db.Connection:
    """The connection of the job's worker, which must not wait for the job's transaction: any wait is an error."""
    connection = connect()
    connection.execute("set lock_timeout = '50ms'")
    set_now(connection, NOW)
    return connection


def effects(connection: db.Connection) -> list[str]:
    return [what for (what,) in connection.execute("select what from effects").fetchall()]


@pytest.mark.parametrize("why", ["ended", "reclaimed", "another worker's", "unknown"])
def test_a_stale_attempt_is_told_so_and_its_effects_are_undone(
    own: db.Connection, service: db.Connection, why: str
) -> None:
    scene = bring(service, Place.RUNNING)
    match why:
        case "ended":
            fire(service, "succeed", scene)
        case "reclaimed":
            fire(service, "hand_back", scene)
            claim(service, worker=BERT, limit=1)
        case "another worker's":
            scene = Scene(scene.job, BERT, scene.token)
        case "unknown":
            scene = Scene(scene.job, ANNA, scene.token + 1000)
    before = contents(service)
    own.execute("begin")
    own.execute("insert into effects values ('paid')")
    with pytest.raises(StaleAttempt), db.translated_errors():
        complete(own, scene.worker, scene.token)
    own.execute("commit")
    assert effects(service) == []
    assert contents(service) == before


def test_the_error_of_a_stale_attempt_has_a_sqlstate_of_its_own(own: db.Connection) -> None:
    with pytest.raises(psycopg.Error) as raised:
        complete(own, ANNA, 1)
    assert raised.value.sqlstate == "OL002"


def test_only_one_of_two_completions_commits(own: db.Connection, service: db.Connection) -> None:
    scene = bring(service, Place.RUNNING)
    complete(own, ANNA, scene.token)
    with pytest.raises(StaleAttempt), db.translated_errors():
        complete(own, ANNA, scene.token)
    assert len(db.run(service, store.list_attempts(scene.job))) == 1


def test_an_open_completion_blocks_neither_renewals_nor_the_reaper(own: db.Connection, service: db.Connection) -> None:
    scene, other = bring(service, Place.RUNNING), bring(service, Place.RUNNING)
    with own.transaction():
        complete(own, ANNA, scene.token)
        assert db.run(service, store.renew(ANNA, [scene.token, other.token])) == {other.token: False}
        assert db.run(service, store.ended([scene.token])) == {}
        set_now(service, TOMORROW)
        assert [lost.token for lost in db.run(service, store.expire())] == [other.token]
        assert not db.run(service, store.let_others_in(ANNA, scene.token))
        assert db.run(service, store.prune_jobs([scene.job])) == 0
    assert db.run(service, store.renew(ANNA, [scene.token])) == {}
    assert db.run(service, store.ended([scene.token])) == {scene.token: (Outcome.SUCCEEDED, State.SUCCEEDED)}


def test_cancelling_a_job_with_an_open_completion_reports_the_completion(
    own: db.Connection, service: db.Connection
) -> None:
    scene, other = bring(service, Place.RUNNING), bring(service, Place.RUNNING)
    waiting = make(service)
    with own.transaction():
        complete(own, ANNA, scene.token)
        changes = {change.id: change for change in db.run(service, store.cancel([scene.job, other.job, waiting]))}
    assert not changes[scene.job].changed
    assert changes[scene.job].state == State.RUNNING
    assert changes[scene.job].note == "another transaction is moving it: try again"
    assert (changes[other.job].changed, changes[waiting].changed) == (True, True)
    [change] = db.run(service, store.cancel([scene.job]))
    assert (change.state, change.changed, change.note) == ("succeeded", False, "it has ended already")


def test_a_completion_that_rolls_back_leaves_the_attempt_to_the_reaper(
    own: db.Connection, service: db.Connection
) -> None:
    scene = bring(service, Place.RUNNING)
    with own.transaction(force_rollback=True):
        complete(own, ANNA, scene.token)
        set_now(service, TOMORROW)
        assert db.run(service, store.expire()) == []
    assert [lost.token for lost in db.run(service, store.expire())] == [scene.token]
    assert state_of(service, scene.job) is State.PENDING


def test_an_open_completion_does_not_hold_up_other_ends_and_claims(own: db.Connection, service: db.Connection) -> None:
    scene, other = bring(service, Place.RUNNING), bring(service, Place.RUNNING)
    waiting = make(service)
    with own.transaction():
        complete(own, ANNA, scene.token)
        assert end_by(service, ANNA, other.token, "succeed") == []
        assert [claimed.id for claimed in claim(service, limit=1)] == [waiting]
