"""A worker that was wrongly declared dead: the losses of its jobs are taken back, once, and nothing else."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Ended, Lane
from outlive.states import Outcome, State
from outlive.worker.leases import Leases
from outlive.worker.renewal import TakingBack
from outlive.worker.session import Session
from tests.driving.making import (
    TASK,
    Connect,
    claim,
    counters,
    hold_of,
    make,
    register_task,
    register_worker,
    row_of,
    set_now,
    state_of,
    value,
)
from tests.store.acting import (
    ANNA,
    BERT,
    CARL,
    NOW,
    Scene,
    assert_sound,
    contents,
    end_by,
    fire,
    give_up,
    leave_crashes,
)
from tests.store.noon import database_url, fresh_at_noon
from tests.waiting import eventually

__all__ = ["database_url", "fresh_at_noon"]

NEW = UUID(int=50)
URGENT = Lane("default", "", TASK, 4)


def lose(connection: db.Connection, worker: UUID = ANNA, *, alone: bool = False) -> Scene:
    """Let a worker claim the next job and be declared dead."""
    register_worker(connection, worker)
    if alone:
        [claimed] = db.run(connection, store.claim_suspect(worker, tasks=[TASK]))
    else:
        [claimed] = claim(connection, worker=worker, limit=1)
    give_up(connection, worker)
    assert len(db.run(connection, store.reap())) == 1
    return Scene(claimed.id, worker, claimed.token)


def take_back(connection: db.Connection, formerly: UUID = ANNA, new: UUID = NEW) -> None:
    register_worker(connection, new, formerly=formerly)
    assert_sound(connection)


def test_a_job_that_waits_again_has_its_loss_taken_back_and_keeps_its_place(connection: db.Connection) -> None:
    job = make(connection, run_at=NOW - timedelta(hours=1))
    lose(connection)
    assert counters(connection, job) == (0, 0, 1)
    take_back(connection)
    assert counters(connection, job) == (0, 0, 0)
    assert row_of(connection, job)["ready_at"] == NOW - timedelta(hours=1)
    [claimed] = claim(connection, worker=BERT, limit=1)
    assert (claimed.id, claimed.attempt, claimed.losses) == (job, 2, 0)


def test_a_job_that_runs_elsewhere_goes_on_with_one_loss_less(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection)
    [claimed] = claim(connection, worker=BERT, limit=1)
    take_back(connection)
    assert counters(connection, job) == (0, 0, 0)
    assert db.run(connection, store.renew(BERT, [claimed.token])) == {claimed.token: False}


def test_a_suspect_by_this_loss_alone_waits_like_any_other(connection: db.Connection, connect: Connect) -> None:
    job = make(connection)
    lose(connection, BERT)
    lose(connection, ANNA)
    assert hold_of(connection, job) is not None
    sleeper = connect()
    sleeper.execute("listen outlive")
    db.run(sleeper, store.sleep(CARL))
    take_back(connection)
    assert hold_of(connection, job) is None
    assert counters(connection, job) == (0, 0, 1)
    assert len(list(sleeper.notifies(timeout=10, stop_after=1))) == 1
    assert [claimed.id for claimed in claim(connection, worker=CARL, limit=1)] == [job]


def test_a_running_suspect_is_cleared_when_it_is_handed_back(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection, BERT)
    lose(connection, ANNA)
    [claimed] = db.run(connection, store.claim_suspect(CARL, tasks=[TASK]))
    take_back(connection)
    assert counters(connection, job) == (0, 0, 1)
    end_by(connection, CARL, claimed.token, "hand_back")
    assert hold_of(connection, job) is None


def test_a_job_quarantined_by_this_loss_is_a_suspect_again(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection, BERT)
    lose(connection, CARL)
    lose(connection, UUID(int=4), alone=True)
    lose(connection, ANNA, alone=True)
    assert state_of(connection, job) is State.QUARANTINED
    take_back(connection)
    said = "3 workers vanished while running it: it runs alone next (max_losses = 3)"
    assert hold_of(connection, job) == ("suspect", said)
    assert counters(connection, job) == (0, 0, 3)
    assert claim(connection, worker=NEW, limit=1) == []
    assert [one.id for one in db.run(connection, store.claim_suspect(NEW, tasks=[TASK]))] == [job]


def test_a_job_that_may_be_lost_only_once_is_not_suspected_of_a_loss_that_was_none(connection: db.Connection) -> None:
    register_task(connection, max_losses=1)
    job = make(connection)
    lose(connection)
    assert state_of(connection, job) is State.QUARANTINED
    take_back(connection)
    assert hold_of(connection, job) is None
    assert counters(connection, job) == (0, 0, 0)
    assert [claimed.id for claimed in claim(connection, worker=BERT, limit=1)] == [job]


@pytest.mark.parametrize("event", ["succeed", "stop", "cancel"])
def test_a_job_that_has_finished_meanwhile_does_not_change(connection: db.Connection, event: str) -> None:
    job = make(connection)
    lose(connection)
    if event == "cancel":
        fire(connection, "cancel", Scene(job))
    else:
        [claimed] = claim(connection, worker=BERT, limit=1)
        end_by(connection, BERT, claimed.token, event)
    before = contents(connection)
    take_back(connection)
    assert contents(connection) == before


def test_a_job_that_failed_by_its_policy_stays_failed(connection: db.Connection) -> None:
    register_task(connection, on_worker_death="fail")
    job = make(connection)
    lose(connection)
    take_back(connection)
    assert state_of(connection, job) is State.FAILED


def test_no_counter_goes_below_zero(connection: db.Connection) -> None:
    jobs = [make(connection), make(connection)]
    for _ in jobs:
        claim(connection, worker=ANNA, limit=1)
    give_up(connection, ANNA)
    db.run(connection, store.reap())
    connection.execute("update outlive.waiting set losses = 0")  # As a suspect that was cleared has them.
    claim(connection, worker=BERT, limit=1)
    take_back(connection)
    assert [counters(connection, job) for job in jobs] == [(0, 0, 0)] * 2


def test_a_registration_that_is_repeated_takes_back_once(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection, BERT)
    lose(connection, ANNA)
    for _ in range(3):
        take_back(connection)
    assert counters(connection, job) == (0, 0, 1)


def test_a_loss_is_taken_back_once_however_many_workers_name_the_dead_one(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection, BERT)
    lose(connection, ANNA)
    for number in range(3):
        take_back(connection, new=UUID(int=60 + number))
    assert counters(connection, job) == (0, 0, 1)
    [first, second] = db.run(connection, store.list_attempts(job))
    assert (first.error, second.error) == (
        "Worker died unexpectedly",
        "Worker died unexpectedly; its worker was alive: taken back",
    )


def give_up_lease(connection: db.Connection) -> Scene:
    """Let the database be away for longer than a lease: a reaper comes first when it is back."""
    register_worker(connection, ANNA)
    claimed = claim(connection, worker=ANNA, limit=1) or db.run(connection, store.claim_suspect(ANNA, tasks=[TASK]))
    set_now(connection, value(connection, "select outlive.now()") + timedelta(seconds=301))
    assert len(db.run(connection, store.expire())) == 1
    return Scene(claimed[0].id, ANNA, claimed[0].token)


def test_outages_longer_than_a_lease_cost_a_job_nothing(connection: db.Connection) -> None:
    """FAULTS 66. The worker is alive, and takes back the loss of each attempt that it gave up: once."""
    job = make(connection)
    for _ in range(4):
        scene = give_up_lease(connection)
        assert counters(connection, job) == (0, 0, 1)
        assert [db.run(connection, store.take_back(ANNA, [scene.token])) for _ in range(2)] == [1, 0]
        assert counters(connection, job) == (0, 0, 0)
        assert_sound(connection)
    counted = connection.execute("select outcome, loss, losses from outlive.attempts").fetchall()
    assert counted == [("lost", "taken back", 0)] * 4


def test_a_worker_takes_back_what_it_gave_up_once_its_end_is_known(
    connection: db.Connection, database_url: str
) -> None:
    """The service of the worker. While its own end of an attempt is not written, a reaper may still come first."""
    job = make(connection)
    scene = give_up_lease(connection)

    async def play() -> list[int]:
        leases, session = Leases(lease_s=300, renew_s=20), Session(database_url)
        service, left = TakingBack(ANNA, session, leases), []
        leases.hold([scene.token], since=0.0)
        leases.not_kept.add(scene.token)
        for _ in range(2):
            await service.run_once()
            left.append(len(leases.not_kept))
            leases.drop(scene.token)
        await session.close()
        return left

    assert asyncio.run(play()) == [1, 0]
    assert counters(connection, job) == (0, 0, 0)


def test_losses_that_are_taken_back_late_leave_the_others(connection: db.Connection) -> None:
    """Four outages, and the losses are taken back only then: the job is a suspect until then."""
    job = make(connection)
    scenes = [give_up_lease(connection) for _ in range(3)]
    assert (hold_of(connection, job) or ("",))[0] == "suspect"
    lose(connection, BERT, alone=True)
    assert counters(connection, job) == (0, 0, 4)
    assert db.run(connection, store.take_back(ANNA, [scene.token for scene in scenes])) == 3
    assert counters(connection, job) == (0, 0, 1)
    assert hold_of(connection, job) is None
    assert_sound(connection)


def test_a_worker_takes_back_only_losses_of_its_own(connection: db.Connection) -> None:
    job = make(connection)
    scene = give_up_lease(connection)
    assert db.run(connection, store.take_back(BERT, [scene.token])) == 0
    assert counters(connection, job) == (0, 0, 1)


def test_a_loss_from_before_a_suspect_was_cleared_is_not_taken_back(connection: db.Connection) -> None:
    job = make(connection)
    lost = [give_up_lease(connection) for _ in range(2)]
    [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    end_by(connection, BERT, claimed.token, "fail", after_s=0.0)
    lose(connection, CARL)
    assert counters(connection, job) == (1, 0, 1)
    assert db.run(connection, store.take_back(ANNA, [scene.token for scene in lost])) == 0
    assert counters(connection, job) == (1, 0, 1)


def test_a_worker_with_an_unknown_former_id_takes_nothing_back(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection)
    register_worker(connection, NEW)
    take_back(connection, formerly=CARL, new=UUID(int=51))
    assert counters(connection, job) == (0, 0, 1)


def test_a_job_quarantined_for_its_crashes_stays_there(connection: db.Connection) -> None:
    job = make(connection, options={"max_crashes": 1})
    lose(connection)
    [claimed] = claim(connection, worker=BERT, limit=1)
    end_by(connection, BERT, claimed.token, "crash")
    register_task(connection, max_losses=1)  # By this limit it would be there for its losses as well, and is not.
    before = hold_of(connection, job)
    take_back(connection)
    assert hold_of(connection, job) == before == ("quarantined", "killed its process once (max_crashes = 1)")


def test_a_job_convicted_by_its_fingerprint_stays_there(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection)
    [claimed] = claim(connection, worker=BERT, limit=1)
    register_task(connection, max_crashes=1, max_losses=1, quarantine_by="fingerprint")
    leave_crashes(connection)
    assert db.run(connection, store.convict(BERT, [claimed.token])) == [job]
    before = hold_of(connection, job)
    take_back(connection)
    assert hold_of(connection, job) == before


def test_a_job_blocked_by_an_operator_stays_blocked(connection: db.Connection) -> None:
    job = make(connection)
    lose(connection)
    db.run(connection, store.block([job], "for a while"))
    take_back(connection)
    assert state_of(connection, job) is State.BLOCKED


def test_a_loss_that_the_worker_itself_has_reported_is_not_taken_back(connection: db.Connection) -> None:
    """The worker's zygote died because of the job, long before the worker was declared dead."""
    job = make(connection)
    register_worker(connection, ANNA)
    [claimed] = claim(connection, worker=ANNA, limit=1)
    db.run(connection, store.end_and_claim(ANNA, [Ended(claimed.token, Outcome.LOST)]))
    set_now(connection, NOW + timedelta(seconds=30))
    assert db.run(connection, store.heartbeat(ANNA, "active"))
    give_up(connection, ANNA)
    take_back(connection)
    assert counters(connection, job) == (0, 0, 1)


def test_a_lease_that_ended_before_the_worker_was_given_up_is_taken_back_too(connection: db.Connection) -> None:
    job = make(connection)
    register_worker(connection, ANNA)
    claim(connection, worker=ANNA, limit=1)
    set_now(connection, NOW + timedelta(seconds=301))
    assert len(db.run(connection, store.expire())) == 1
    give_up(connection, ANNA)
    take_back(connection)
    assert counters(connection, job) == (0, 0, 0)


def waits(watcher: db.Connection, other: db.Connection) -> bool:
    query = "select wait_event_type = 'Lock' or wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    return value(watcher, query, other.info.backend_pid) is True


@pytest.mark.parametrize("commits", [True, False])
def test_a_job_that_is_just_being_renewed_is_waited_for(
    connection: db.Connection, connect: Connect, commits: bool
) -> None:
    job = make(connection)
    lose(connection)
    [claimed] = claim(connection, worker=BERT, limit=1)
    first, second = connect(), connect()
    with ThreadPoolExecutor(1) as threads:
        with first.transaction(force_rollback=not commits):
            db.run(first, store.renew(BERT, [claimed.token]))
            answer = threads.submit(register_worker, second, NEW, formerly=ANNA)
            eventually(lambda: answer.done() or waits(connection, second))
        answer.result(timeout=10)
    assert counters(connection, job) == (0, 0, 0)


def test_a_job_that_is_just_being_claimed_is_waited_for(connection: db.Connection, connect: Connect) -> None:
    job = make(connection)
    lose(connection)
    first, second = connect(), connect()
    set_now(first, NOW)
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            assert [claimed.id for claimed in claim(first, worker=BERT, limit=1)] == [job]
            answer = threads.submit(register_worker, second, NEW, formerly=ANNA)
            eventually(lambda: answer.done() or waits(connection, second))
        answer.result(timeout=10)
    assert state_of(connection, job) is State.RUNNING
    assert counters(connection, job) == (0, 0, 0)


def test_taking_back_does_not_deadlock_with_a_worker_that_claims_one_job_and_ends_another(
    connection: db.Connection, connect: Connect
) -> None:
    jobs = sorted(make(connection) for _ in range(2))
    register_worker(connection, ANNA)
    claim(connection, worker=ANNA, limit=2)
    give_up(connection, ANNA)
    db.run(connection, store.reap())
    connection.execute("update outlive.waiting set priority = 4 where id = %s", [jobs[0]])
    [claimed] = db.run(connection, store.end_and_claim(BERT, (), [URGENT], limit=1)).claimed
    assert claimed.id == jobs[0]
    first, second = connect(), connect()
    set_now(first, NOW)
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            assert [one.id for one in claim(first, worker=BERT, limit=1)] == [jobs[1]]
            answer = threads.submit(register_worker, second, NEW, formerly=ANNA)
            eventually(lambda: answer.done() or waits(connection, second))
            db.run(first, store.end_and_claim(BERT, [Ended(claimed.token, Outcome.FAILED)]))
        answer.result(timeout=10)
    assert [counters(connection, job) for job in jobs] == [(1, 0, 0), (0, 0, 0)]
    assert_sound(connection)


def test_a_job_in_a_long_transaction_of_its_own_holds_up_no_other(connection: db.Connection, connect: Connect) -> None:
    jobs = [make(connection) for _ in range(2)]
    register_worker(connection, ANNA)
    claim(connection, worker=ANNA, limit=2)
    give_up(connection, ANNA)
    db.run(connection, store.reap())
    [claimed] = claim(connection, worker=BERT, limit=1)
    child = connect()
    with child.transaction():
        child.execute("select outlive.complete_with_records(%s, %s)", [claimed.token, BERT])
        register_worker(connection, NEW, formerly=ANNA)
    [other] = set(jobs) - {claimed.id}
    assert counters(connection, other) == (0, 0, 0)
    assert state_of(connection, claimed.id) is State.SUCCEEDED
    assert_sound(connection)


def test_a_lease_from_before_the_servers_start_does_not_expire_while_the_server_is_young(
    connection: db.Connection,
) -> None:
    """Its worker could not renew it, and may need a moment to come back and to give up the job at no cost."""
    make(connection)
    claim(connection, worker=ANNA, lease_s=-1.0)
    connection.execute("update outlive.running set heartbeat_at = pg_postmaster_start_time() - interval '1 second'")
    assert db.run(connection, store.expire(young_s=1e9)) == []
    connection.execute("update outlive.running set heartbeat_at = pg_postmaster_start_time()")
    assert len(db.run(connection, store.expire(young_s=1e9))) == 1
