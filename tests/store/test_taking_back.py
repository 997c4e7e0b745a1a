"""A worker that was wrongly declared dead: the losses of its jobs are taken back, once, and nothing else."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Ended, Lane
from outlive.states import Outcome, State
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.renewal import TakingBack
from outlive.worker.session import Session
from tests.driving.making import TASK, Queue
from tests.store.acting import ANNA, BERT, CARL, NOW, Scene, assert_sound, end_by, give_up
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

NEW = UUID(int=50)
URGENT = Lane("default", "", TASK, 4)


def lose(queue: Queue, worker: UUID = ANNA, *, alone: bool = False) -> Scene:
    """Let a worker claim the next job and be declared dead."""
    queue.register_worker(worker)
    if alone:
        [claimed] = queue.run(store.claim_suspect(worker, tasks=[TASK]))
    else:
        [claimed] = queue.claim(worker=worker, limit=1)
    give_up(queue, worker)
    assert len(queue.run(store.reap())) == 1
    return Scene(claimed.id, worker, claimed.token)


def take_back(queue: Queue, formerly: UUID = ANNA, new: UUID = NEW) -> None:
    queue.register_worker(new, formerly=formerly)
    assert_sound(queue)


def test_a_job_that_waits_again_has_its_loss_taken_back_and_keeps_its_place(queue):
    job = queue.make(run_at=NOW - timedelta(hours=1))
    lose(queue)
    assert queue.counters(job) == (0, 0, 1)
    take_back(queue)
    assert queue.counters(job) == (0, 0, 0)
    assert queue.row_of(job)["ready_at"] == NOW - timedelta(hours=1)
    [claimed] = queue.claim(worker=BERT, limit=1)
    assert (claimed.id, claimed.attempt, claimed.losses) == (job, 2, 0)


def test_a_suspect_by_this_loss_alone_waits_like_any_other(queue, connect):
    job = queue.make()
    lose(queue, BERT)
    lose(queue, ANNA)
    assert queue.hold_of(job) is not None
    sleeper = connect()
    sleeper.execute("listen outlive")
    sleeper.run(store.sleep(CARL))
    take_back(queue)
    assert queue.hold_of(job) is None
    assert queue.counters(job) == (0, 0, 1)
    assert len(list(sleeper.notifies(timeout=10, stop_after=1))) == 1
    assert [claimed.id for claimed in queue.claim(worker=CARL, limit=1)] == [job]


def test_a_running_suspect_is_cleared_when_it_is_handed_back(queue):
    job = queue.make()
    lose(queue, BERT)
    lose(queue, ANNA)
    [claimed] = queue.run(store.claim_suspect(CARL, tasks=[TASK]))
    take_back(queue)
    assert queue.counters(job) == (0, 0, 1)
    end_by(queue, CARL, claimed.token, "hand_back")
    assert queue.hold_of(job) is None


def test_a_job_quarantined_by_this_loss_is_a_suspect_again(queue):
    job = queue.make()
    lose(queue, BERT)
    lose(queue, CARL)
    lose(queue, UUID(int=4), alone=True)
    lose(queue, ANNA, alone=True)
    assert queue.state_of(job) is State.QUARANTINED
    take_back(queue)
    said = "3 workers vanished while running it: it runs alone next (max_losses = 3)"
    assert queue.hold_of(job) == ("suspect", said)
    assert queue.counters(job) == (0, 0, 3)
    assert queue.claim(worker=NEW, limit=1) == []
    assert [one.id for one in queue.run(store.claim_suspect(NEW, tasks=[TASK]))] == [job]


def test_a_job_that_may_be_lost_only_once_is_not_suspected_of_a_loss_that_was_none(queue):
    queue.register_task(max_losses=1)
    job = queue.make()
    lose(queue)
    assert queue.state_of(job) is State.QUARANTINED
    take_back(queue)
    assert queue.hold_of(job) is None
    assert queue.counters(job) == (0, 0, 0)
    assert [claimed.id for claimed in queue.claim(worker=BERT, limit=1)] == [job]


def test_a_job_that_failed_by_its_policy_stays_failed(queue):
    queue.register_task(on_worker_death="fail")
    job = queue.make()
    lose(queue)
    take_back(queue)
    assert queue.state_of(job) is State.FAILED


def test_a_loss_is_taken_back_once_however_many_workers_name_the_dead_one(queue):
    job = queue.make()
    lose(queue, BERT)
    lose(queue, ANNA)
    for number in range(3):
        take_back(queue, new=UUID(int=60 + number))
    assert queue.counters(job) == (0, 0, 1)
    [first, second] = queue.run(store.list_attempts(job))
    assert (first.error, second.error) == (
        "Worker died unexpectedly",
        "Worker died unexpectedly; its worker was alive: taken back",
    )


def give_up_lease(queue: Queue) -> Scene:
    """Let the database be away for longer than a lease: a reaper comes first when it is back."""
    queue.register_worker(ANNA)
    claimed = queue.claim(worker=ANNA, limit=1) or queue.run(store.claim_suspect(ANNA, tasks=[TASK]))
    queue.set_now(queue.value("select outlive.now()") + timedelta(seconds=301))
    assert len(queue.run(store.expire())) == 1
    return Scene(claimed[0].id, ANNA, claimed[0].token)


def test_outages_longer_than_a_lease_cost_a_job_nothing(queue):
    """FAULTS 66. The worker is alive, and takes back the loss of each attempt that it gave up: once."""
    job = queue.make()
    for _ in range(4):
        scene = give_up_lease(queue)
        assert queue.counters(job) == (0, 0, 1)
        assert [queue.run(store.take_back(ANNA, [scene.token])) for _ in range(2)] == [1, 0]
        assert queue.counters(job) == (0, 0, 0)
        assert_sound(queue)
    counted = queue.execute("select outcome, loss, losses from outlive.attempts").fetchall()
    assert counted == [("lost", "taken back", 0)] * 4


def test_a_worker_takes_back_what_it_gave_up_once_its_end_is_known(queue, database_url):
    """The service of the worker. While its own end of an attempt is not written, a reaper may still come first."""
    job = queue.make()
    scene = give_up_lease(queue)

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
    assert queue.counters(job) == (0, 0, 0)


def test_losses_that_are_taken_back_late_leave_the_others(queue):
    """Four outages, and the losses are taken back only then: the job is a suspect until then."""
    job = queue.make()
    scenes = [give_up_lease(queue) for _ in range(3)]
    assert (queue.hold_of(job) or ("",))[0] == "suspect"
    lose(queue, BERT, alone=True)
    assert queue.counters(job) == (0, 0, 4)
    assert queue.run(store.take_back(ANNA, [scene.token for scene in scenes])) == 3
    assert queue.counters(job) == (0, 0, 1)
    assert queue.hold_of(job) is None
    assert_sound(queue)


def test_a_worker_takes_back_only_losses_of_its_own(queue):
    job = queue.make()
    scene = give_up_lease(queue)
    assert queue.run(store.take_back(BERT, [scene.token])) == 0
    assert queue.counters(job) == (0, 0, 1)


def test_a_loss_from_before_a_suspect_was_cleared_is_not_taken_back(queue):
    job = queue.make()
    lost = [give_up_lease(queue) for _ in range(2)]
    [claimed] = queue.run(store.claim_suspect(BERT, tasks=[TASK]))
    end_by(queue, BERT, claimed.token, "fail", after_s=0.0)
    lose(queue, CARL)
    assert queue.counters(job) == (1, 0, 1)
    assert queue.run(store.take_back(ANNA, [scene.token for scene in lost])) == 0
    assert queue.counters(job) == (1, 0, 1)


def test_a_job_quarantined_for_its_crashes_stays_there(queue):
    job = queue.make(options={"max_crashes": 1})
    lose(queue)
    [claimed] = queue.claim(worker=BERT, limit=1)
    end_by(queue, BERT, claimed.token, "crash")
    queue.register_task(max_losses=1)  # By this limit it would be there for its losses as well, and is not.
    before = queue.hold_of(job)
    take_back(queue)
    assert queue.hold_of(job) == before == ("quarantined", "killed its process once (max_crashes = 1)")


def test_a_loss_that_the_worker_itself_has_reported_is_not_taken_back(queue):
    """The worker's zygote died because of the job, long before the worker was declared dead."""
    job = queue.make()
    queue.register_worker(ANNA)
    [claimed] = queue.claim(worker=ANNA, limit=1)
    queue.run(store.end_and_claim(ANNA, [Ended(claimed.token, Outcome.LOST)]))
    queue.set_now(NOW + timedelta(seconds=30))
    assert queue.run(store.heartbeat(ANNA, "active"))
    give_up(queue, ANNA)
    take_back(queue)
    assert queue.counters(job) == (0, 0, 1)


def return_as_new(queue: Queue) -> None:
    queue.register_worker(NEW, formerly=ANNA)


@pytest.mark.parametrize("commits", [True, False])
def test_a_job_that_is_just_being_renewed_is_waited_for(queue, ring, commits):
    job = queue.make()
    lose(queue)
    [claimed] = queue.claim(worker=BERT, limit=1)
    with ring.first.transaction(force_rollback=not commits):
        ring.first.run(store.renew(BERT, [claimed.token]))
        answer = ring.start(return_as_new)
    answer.result(timeout=10)
    assert queue.counters(job) == (0, 0, 0)


def test_a_job_that_is_just_being_claimed_is_waited_for(queue, ring):
    job = queue.make()
    lose(queue)
    ring.first.set_now(NOW)
    with ring.first.transaction():
        assert [claimed.id for claimed in ring.first.claim(worker=BERT, limit=1)] == [job]
        answer = ring.start(return_as_new)
    answer.result(timeout=10)
    assert queue.state_of(job) is State.RUNNING
    assert queue.counters(job) == (0, 0, 0)


def test_taking_back_does_not_deadlock_with_a_worker_that_claims_one_job_and_ends_another(queue, ring):
    jobs = sorted(queue.make() for _ in range(2))
    queue.register_worker(ANNA)
    queue.claim(worker=ANNA, limit=2)
    give_up(queue, ANNA)
    queue.run(store.reap())
    queue.execute("update outlive.waiting set priority = 4 where id = %s", [jobs[0]])
    [claimed] = queue.run(store.end_and_claim(BERT, (), [URGENT], limit=1)).claimed
    assert claimed.id == jobs[0]
    ring.first.set_now(NOW)
    with ring.first.transaction():
        assert [one.id for one in ring.first.claim(worker=BERT, limit=1)] == [jobs[1]]
        answer = ring.start(return_as_new)
        ring.first.run(store.end_and_claim(BERT, [Ended(claimed.token, Outcome.FAILED)]))
    answer.result(timeout=10)
    assert [queue.counters(job) for job in jobs] == [(1, 0, 0), (0, 0, 0)]
    assert_sound(queue)


def test_a_job_in_a_long_transaction_of_its_own_holds_up_no_other(queue, connect):
    jobs = [queue.make() for _ in range(2)]
    queue.register_worker(ANNA)
    queue.claim(worker=ANNA, limit=2)
    give_up(queue, ANNA)
    queue.run(store.reap())
    [claimed] = queue.claim(worker=BERT, limit=1)
    child = connect()
    with child.transaction():
        child.execute("select outlive.complete_with_records(%s, %s)", [claimed.token, BERT])
        queue.register_worker(NEW, formerly=ANNA)
    [other] = set(jobs) - {claimed.id}
    assert queue.counters(other) == (0, 0, 0)
    assert queue.state_of(claimed.id) is State.SUCCEEDED
    assert_sound(queue)


def test_a_lease_from_before_the_servers_start_does_not_expire_while_the_server_is_young(queue):
    """Its worker could not renew it, and may need a moment to come back and to give up the job at no cost."""
    queue.make()
    queue.claim(worker=ANNA, lease_s=-1.0)
    queue.execute("update outlive.running set heartbeat_at = pg_postmaster_start_time() - interval '1 second'")
    assert queue.run(store.expire(young_s=1e9)) == []
    queue.execute("update outlive.running set heartbeat_at = pg_postmaster_start_time()")
    assert len(queue.run(store.expire(young_s=1e9))) == 1
