"""outlive.complete: a job's effects and its completion commit together or not at all, and hold up no other."""

from collections.abc import Callable

import psycopg
import pytest

from outlive import db, store
from outlive.errors import StaleAttempt
from outlive.states import Outcome, State
from tests.driving.making import Queue
from tests.store.acting import ANNA, BERT, NOW, TOMORROW, Place, Scene, bring, complete, contents, end_by, fire

Connect = Callable[[], Queue]


@pytest.fixture
def own(connect: Connect) -> Queue:
    """The connection of a job, with a table of its own. It never waits longer than a second."""
    connection = connect()
    connection.execute("create table effects (what text)")
    connection.execute("set lock_timeout = '1s'")
    connection.set_now(NOW)
    return connection


@pytest.fixture
def service(connect: Connect) -> Queue:
    """The connection of the job's worker, which must not wait for the job's transaction: any wait is an error."""
    connection = connect()
    connection.execute("set lock_timeout = '50ms'")
    connection.set_now(NOW)
    return connection


def effects(queue: Queue) -> list[str]:
    return [what for (what,) in queue.execute("select what from effects").fetchall()]


@pytest.mark.parametrize("why", ["ended", "reclaimed", "another worker's", "unknown"])
def test_a_stale_attempt_is_told_so_and_its_effects_are_undone(own, service, why):
    scene = bring(service, Place.RUNNING)
    match why:
        case "ended":
            fire(service, "succeed", scene)
        case "reclaimed":
            fire(service, "hand_back", scene)
            service.claim(worker=BERT, limit=1)
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


def test_the_error_of_a_stale_attempt_has_a_sqlstate_of_its_own(own):
    with pytest.raises(psycopg.Error) as raised:
        complete(own, ANNA, 1)
    assert raised.value.sqlstate == "OL002"


def test_only_one_of_two_completions_commits(own, service):
    scene = bring(service, Place.RUNNING)
    complete(own, ANNA, scene.token)
    with pytest.raises(StaleAttempt), db.translated_errors():
        complete(own, ANNA, scene.token)
    assert len(service.run(store.list_attempts(scene.job))) == 1


def test_an_open_completion_blocks_neither_renewals_nor_the_reaper(own, service):
    scene, other = bring(service, Place.RUNNING), bring(service, Place.RUNNING)
    with own.transaction():
        complete(own, ANNA, scene.token)
        assert service.run(store.renew(ANNA, [scene.token, other.token])) == {other.token: False}
        assert service.run(store.ended([scene.token])) == {}
        service.set_now(TOMORROW)
        assert [lost.token for lost in service.run(store.expire())] == [other.token]
        assert not service.run(store.end_time_alone(ANNA, scene.token))
        assert service.run(store.prune_jobs([scene.job])) == 0
    assert service.run(store.renew(ANNA, [scene.token])) == {}
    assert service.run(store.ended([scene.token])) == {scene.token: (Outcome.SUCCEEDED, State.SUCCEEDED)}


def test_cancelling_a_job_with_an_open_completion_reports_the_completion(own, service):
    scene, other = bring(service, Place.RUNNING), bring(service, Place.RUNNING)
    waiting = service.make()
    with own.transaction():
        complete(own, ANNA, scene.token)
        changes = {change.id: change for change in service.run(store.cancel([scene.job, other.job, waiting]))}
    assert not changes[scene.job].changed
    assert changes[scene.job].state == State.RUNNING
    assert changes[scene.job].note == "another transaction is moving it: try again"
    assert (changes[other.job].changed, changes[waiting].changed) == (True, True)
    [change] = service.run(store.cancel([scene.job]))
    assert (change.state, change.changed, change.note) == ("succeeded", False, "it has ended already")


def test_a_completion_that_rolls_back_leaves_the_attempt_to_the_reaper(own, service):
    scene = bring(service, Place.RUNNING)
    with own.transaction(force_rollback=True):
        complete(own, ANNA, scene.token)
        service.set_now(TOMORROW)
        assert service.run(store.expire()) == []
    assert [lost.token for lost in service.run(store.expire())] == [scene.token]
    assert service.state_of(scene.job) is State.PENDING


def test_an_open_completion_does_not_hold_up_other_ends_and_claims(own, service):
    scene, other = bring(service, Place.RUNNING), bring(service, Place.RUNNING)
    waiting = service.make()
    with own.transaction():
        complete(own, ANNA, scene.token)
        assert end_by(service, ANNA, other.token, "succeed") == []
        assert [claimed.id for claimed in service.claim(limit=1)] == [waiting]
