"""When missing locks prove that workers are dead."""

from uuid import UUID

from outlive.worker.fleet.absences import Absences

ANNA, BERT = UUID(int=1), UUID(int=2)


def checked(*checks: tuple[float, dict[UUID, int]]) -> Absences:
    """What a reaper knows after it has found these workers without their locks at these times."""
    absences = Absences()
    absences.connected(1, 0.0)
    for now, absent in checks:
        absences.found(absent, now)
    return absences


def test_a_lock_that_is_missing_for_half_a_second_proves_a_death():
    assert checked((10.0, {ANNA: 7})).proven(10.0) == {}
    assert checked((10.0, {ANNA: 7}), (10.4, {ANNA: 7})).proven(10.4) == {}
    assert checked((10.0, {ANNA: 7, BERT: 8}), (10.5, {ANNA: 7})).proven(10.5) == {ANNA: 7}


def test_a_worker_that_took_another_lock_in_between_is_alive():
    assert checked((10.0, {ANNA: 7}), (10.5, {ANNA: 9})).proven(10.5) == {}
    assert checked((10.0, {ANNA: 7}), (10.5, {}), (11.0, {ANNA: 7})).proven(11.0) == {}


def test_a_reaper_that_did_not_look_for_long_begins_again():
    assert checked((10.0, {ANNA: 7}), (15.5, {ANNA: 7})).proven(15.5) == {}


def test_a_reaper_that_has_just_reconnected_wants_three_seconds():
    """What ended its connection may have ended those of others."""
    absences = checked((10.0, {ANNA: 7}))
    absences.connected(2, 10.2)
    absences.found({ANNA: 7}, 10.5)
    absences.found({ANNA: 7}, 13.1)
    assert absences.proven(13.1) == {}, "what it saw before does not count"
    absences.found({ANNA: 7}, 13.5)
    assert absences.proven(13.5) == {ANNA: 7}
    absences.found({BERT: 8}, 16.0)
    absences.found({BERT: 8}, 16.5)
    assert absences.proven(16.5) == {BERT: 8}, "it is not cautious any more"
