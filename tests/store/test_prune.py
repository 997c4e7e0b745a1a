"""Pruning: jobs that ended long enough ago, in batches, and never a job that is still needed."""

from datetime import timedelta
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving.making import (
    NOON,
    Connect,
    claim,
    count,
    end,
    make,
    make_finished,
    make_many,
    make_quarantined,
    new_worker,
    plan,
    register_worker,
    run_job,
    set_now,
    state_of,
    values,
)

DAY_S = 86400.0
FINISHED = {State.SUCCEEDED: Outcome.SUCCEEDED, State.FAILED: Outcome.FAILED, State.CANCELLED: Outcome.CANCELLED}


def jobs(connection: db.Connection) -> set[UUID]:
    return set(values(connection, "select id from outlive.jobs"))


@pytest.mark.parametrize("ended", FINISHED)
def test_a_finished_job_is_kept_for_its_time_and_then_forgotten(connection: db.Connection, ended: State) -> None:
    set_now(connection)
    make_finished(connection, FINISHED[ended], dedupe_key="key")
    connection.execute(
        "insert into outlive.progress select id, 1, 3, 10, 'page 3', null, outlive.now() from outlive.jobs"
    )
    set_now(connection, later_s=7 * DAY_S)
    assert db.run(connection, store.prune_finished(ended, keep_s=7 * DAY_S))[:2] == (0, False)
    set_now(connection, later_s=7 * DAY_S + 1)
    assert db.run(connection, store.prune_finished(ended, keep_s=7 * DAY_S))[:2] == (1, False)
    assert [count(connection, table) for table in ("jobs", "attempts", "progress", "dedupe_keys")] == [0, 0, 0, 0]


@pytest.mark.parametrize("pruned", FINISHED)
def test_only_jobs_of_the_state_that_is_pruned_go(connection: db.Connection, pruned: State) -> None:
    set_now(connection)
    made = {ended: make_finished(connection, outcome) for ended, outcome in FINISHED.items()}
    set_now(connection, later_s=DAY_S)
    assert db.run(connection, store.prune_finished(pruned, keep_s=60))[:2] == (1, False)
    assert jobs(connection) == {job for ended, job in made.items() if ended is not pruned}


def test_an_unfinished_job_is_never_forgotten_by_age(connection: db.Connection) -> None:
    set_now(connection)
    retryable = make(connection)
    run_job(connection, retryable, Outcome.FAILED)
    quarantined = make_quarantined(connection)
    running = make(connection)
    claim(connection)
    pending, blocked = make_many(connection, 2)
    db.run(connection, store.block([blocked], "wait"))
    set_now(connection, later_s=1000 * DAY_S)
    for ended in State:
        assert db.run(connection, store.prune_finished(ended, keep_s=0))[:2] == (0, False), ended
    assert jobs(connection) == {retryable, quarantined, running, pending, blocked}


def test_by_hand_the_finished_and_the_quarantined_go_and_the_others_stay(connection: db.Connection) -> None:
    finished = [make_finished(connection, outcome) for outcome in FINISHED.values()]
    quarantined = make_quarantined(connection, dedupe_key="key")
    retryable = make(connection)
    run_job(connection, retryable, Outcome.FAILED)
    running = make(connection)
    claim(connection)
    pending, blocked = make_many(connection, 2)
    db.run(connection, store.block([blocked], "wait"))
    every = [*finished, quarantined, retryable, running, pending, blocked, new_worker()]
    assert db.run(connection, store.prune_jobs(every)) == 4
    assert jobs(connection) == {retryable, running, pending, blocked}
    assert (count(connection, "dedupe_keys"), values(connection, "select why from outlive.held")) == (0, ["blocked"])
    assert db.run(connection, store.prune_jobs(every)) == 0


@pytest.mark.parametrize("ended", [State.FAILED, State.CANCELLED])
def test_a_revived_job_is_kept(connection: db.Connection, ended: State) -> None:
    set_now(connection)
    job = make_finished(connection, FINISHED[ended])
    set_now(connection, later_s=DAY_S)
    db.run(connection, store.retry([job]))

    def pruned() -> list[tuple[int, bool]]:
        return [db.run(connection, store.prune_finished(one, keep_s=60))[:2] for one in FINISHED]

    assert pruned() == [(0, False)] * 3
    (claimed,) = claim(connection)
    assert pruned() == [(0, False)] * 3
    assert db.run(connection, store.prune_jobs([job])) == 0
    end(connection, Ended(claimed.token, Outcome.CRASHED))
    assert pruned() == [(0, False)] * 3
    assert values(connection, "select attempt from outlive.attempts order by attempt") == [1, 2]


def test_a_revived_job_is_kept_for_its_time_from_its_last_end_on(connection: db.Connection) -> None:
    set_now(connection)
    job = make_finished(connection, Outcome.FAILED)
    set_now(connection, later_s=DAY_S)
    db.run(connection, store.retry([job]))
    run_job(connection, job)
    set_now(connection, later_s=DAY_S + 60)
    assert db.run(connection, store.prune_finished(State.FAILED, keep_s=60))[:2] == (0, False)
    assert db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=60))[:2] == (0, False)
    set_now(connection, later_s=DAY_S + 61)
    assert db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=60))[:2] == (1, False)
    assert count(connection, "attempts") == 0


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_job_that_is_being_revived_is_skipped_without_waiting(connect: Connect, by_hand: bool) -> None:
    pruner, operator = connect(), connect()
    set_now(pruner)
    revived, forgotten = (make_finished(pruner, Outcome.FAILED) for _ in range(2))
    set_now(pruner, later_s=DAY_S)
    pruner.execute("set lock_timeout = '1s'")
    with operator.transaction():
        db.run(operator, store.retry([revived]))
        if by_hand:
            assert db.run(pruner, store.prune_jobs([revived, forgotten])) == 1
        else:
            assert db.run(pruner, store.prune_finished(State.FAILED, keep_s=60))[:2] == (1, False)
    assert (state_of(pruner, revived), state_of(pruner, forgotten)) == (State.PENDING, None)


def test_a_retry_that_comes_too_late_finds_nothing(connect: Connect) -> None:
    pruner, operator = connect(), connect()
    job = make_finished(pruner, Outcome.FAILED)
    with pruner.transaction():
        assert db.run(pruner, store.prune_jobs([job])) == 1
    assert db.run(operator, store.retry([job])) == []
    assert count(operator, "waiting") == 0


def test_the_oldest_go_first_a_batch_at_a_time(connection: db.Connection) -> None:
    made = []
    for n in range(7):
        set_now(connection, later_s=n)
        made.append(make_finished(connection))
    set_now(connection, later_s=DAY_S)
    turn = store.prune_finished(State.SUCCEEDED, keep_s=60, batch=3)
    assert db.run(connection, turn)[:2] == (3, True)
    assert jobs(connection) == set(made[3:])
    assert db.run(connection, turn)[:2] == (3, True)
    assert db.run(connection, turn)[:2] == (1, False)
    assert db.run(connection, turn)[:2] == (0, False)


@pytest.mark.parametrize("then", ["waiting", "running", "held", "finished"])
def test_revived_jobs_take_no_room_in_a_batch(connection: db.Connection, then: str) -> None:
    set_now(connection)
    revived = make_finished(connection, Outcome.FAILED)
    set_now(connection, later_s=1)
    forgotten = make_finished(connection, Outcome.FAILED)
    set_now(connection, later_s=DAY_S)
    db.run(connection, store.retry([revived]))
    match then:
        case "running":
            claim(connection)
        case "held":
            db.run(connection, store.block([revived], "wait"))
        case "finished":
            run_job(connection, revived)
    assert db.run(connection, store.prune_finished(State.FAILED, keep_s=60, batch=1))[:2] == (1, True)
    assert state_of(connection, forgotten) is None


def test_finding_the_old_uses_the_index(connection: db.Connection) -> None:
    """Pruning reads only old rows of one state, so it is fast however much is kept."""
    set_now(connection)
    for _ in range(3):
        make_finished(connection)
    connection.execute(
        "insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses)"
        " select gen_random_uuid(), 1, -n, 'succeeded', 'succeeded', outlive.now() + n * interval '1 s', 0, 0, 0"
        " from generate_series(60, 5060) n"
    )
    set_now(connection, later_s=61)
    statement = store.prune_finished(State.SUCCEEDED, keep_s=60)
    scans = [
        one for one in plan(connection, statement.text, statement.parameters) if one.get("Relation Name") == "attempts"
    ]
    assert max(one["Actual Rows"] * one["Actual Loops"] for one in scans) == 3
    assert {one["Node Type"] for one in scans} <= {"Index Scan", "Index Only Scan"}


def test_workers_that_are_gone_for_long_enough_are_forgotten(connection: db.Connection) -> None:
    set_now(connection)
    long_ago, lately = NOON - timedelta(days=8), NOON - timedelta(days=6)
    for state_of_it in ("active", "stale", "draining", "dead", "stopped"):
        register_worker(connection, new_worker(), name=f"old {state_of_it}", state=state_of_it, last_seen=long_ago)
        register_worker(connection, new_worker(), name=f"new {state_of_it}", state=state_of_it, last_seen=lately)
    db.run(connection, store.prune_workers(keep_s=7 * DAY_S))
    kept = {f"new {one}" for one in ("active", "stale", "draining", "dead", "stopped")}
    assert set(values(connection, "select name from outlive.workers")) == kept | {
        "old active",
        "old stale",
        "old draining",
    }


def test_a_dead_worker_is_remembered_while_it_has_an_attempt(connection: db.Connection) -> None:
    set_now(connection)
    register_worker(connection, last_seen=NOON - timedelta(days=8))
    make(connection)
    (claimed,) = claim(connection)
    connection.execute("update outlive.workers set state = 'dead'")
    db.run(connection, store.prune_workers(keep_s=7 * DAY_S))
    assert count(connection, "workers") == 1
    end(connection, Ended(claimed.token))
    db.run(connection, store.prune_workers(keep_s=7 * DAY_S))
    assert count(connection, "workers") == 0
