"""Pruning: jobs that ended long enough ago, in batches, and never a job that is still needed."""

from datetime import timedelta
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Ended, SourceLimits
from outlive.states import Outcome, State
from tests.driving.making import NOON, WORKER, Queue, new_worker

DAY_S = 86400.0
FINISHED = {State.SUCCEEDED: Outcome.SUCCEEDED, State.FAILED: Outcome.FAILED, State.CANCELLED: Outcome.CANCELLED}


def jobs(queue: Queue) -> set[UUID]:
    return set(queue.values("select id from outlive.jobs"))


@pytest.mark.parametrize("ended", FINISHED)
def test_a_finished_job_is_kept_for_its_time_and_then_forgotten(queue, ended):
    queue.set_now()
    queue.make_finished(FINISHED[ended], dedupe_key="key")
    queue.execute("insert into outlive.progress select id, 1, 3, 10, 'page 3', outlive.now() from outlive.jobs")
    queue.set_now(later_s=7 * DAY_S)
    assert queue.run(store.prune_finished(ended, keep_s=7 * DAY_S))[:2] == (0, False)
    queue.set_now(later_s=7 * DAY_S + 1)
    assert queue.run(store.prune_finished(ended, keep_s=7 * DAY_S))[:2] == (1, False)
    assert [queue.count(table) for table in ("jobs", "attempts", "progress", "dedupe_keys")] == [0, 0, 0, 0]


def test_an_unfinished_job_is_never_forgotten_by_age(queue):
    queue.set_now()
    retryable = queue.make()
    queue.run_job(retryable, Outcome.FAILED)
    quarantined = queue.make_quarantined()
    running = queue.make()
    queue.claim()
    pending, blocked = queue.make_many(2)
    queue.run(store.block([blocked], "wait"))
    queue.set_now(later_s=1000 * DAY_S)
    for ended in State:
        assert queue.run(store.prune_finished(ended, keep_s=0))[:2] == (0, False), ended
    assert jobs(queue) == {retryable, quarantined, running, pending, blocked}


def test_a_revived_job_is_kept_for_its_time_from_its_last_end_on(queue):
    queue.set_now()
    job = queue.make_finished(Outcome.FAILED)
    queue.set_now(later_s=DAY_S)
    queue.run(store.retry([job]))
    queue.run_job(job)
    queue.set_now(later_s=DAY_S + 60)
    assert queue.run(store.prune_finished(State.FAILED, keep_s=60))[:2] == (0, False)
    assert queue.run(store.prune_finished(State.SUCCEEDED, keep_s=60))[:2] == (0, False)
    queue.set_now(later_s=DAY_S + 61)
    assert queue.run(store.prune_finished(State.SUCCEEDED, keep_s=60))[:2] == (1, False)
    assert queue.count("attempts") == 0


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_job_that_is_being_revived_is_skipped_without_waiting(connect, by_hand):
    pruner, operator = connect(), connect()
    pruner.set_now()
    revived, forgotten = (pruner.make_finished(Outcome.FAILED) for _ in range(2))
    pruner.set_now(later_s=DAY_S)
    pruner.execute("set lock_timeout = '1s'")
    with operator.transaction():
        operator.run(store.retry([revived]))
        if by_hand:
            assert pruner.run(store.prune_jobs([revived, forgotten])) == 1
        else:
            assert pruner.run(store.prune_finished(State.FAILED, keep_s=60))[:2] == (1, False)
    assert (pruner.state_of(revived), pruner.state_of(forgotten)) == (State.PENDING, None)


def test_the_oldest_go_first_a_batch_at_a_time(queue):
    made = []
    for n in range(7):
        queue.set_now(later_s=n)
        made.append(queue.make_finished())
    queue.set_now(later_s=DAY_S)
    turn = store.prune_finished(State.SUCCEEDED, keep_s=60, batch=3)
    assert queue.run(turn)[:2] == (3, True)
    assert jobs(queue) == set(made[3:])
    assert queue.run(turn)[:2] == (3, True)
    assert queue.run(turn)[:2] == (1, False)
    assert queue.run(turn)[:2] == (0, False)


@pytest.mark.parametrize("then", ["waiting", "running", "held", "finished"])
def test_revived_jobs_take_no_room_in_a_batch(queue, then):
    queue.set_now()
    revived = queue.make_finished(Outcome.FAILED)
    queue.set_now(later_s=1)
    forgotten = queue.make_finished(Outcome.FAILED)
    queue.set_now(later_s=DAY_S)
    queue.run(store.retry([revived]))
    match then:
        case "running":
            queue.claim()
        case "held":
            queue.run(store.block([revived], "wait"))
        case "finished":
            queue.run_job(revived)
    assert queue.run(store.prune_finished(State.FAILED, keep_s=60, batch=1))[:2] == (1, True)
    assert queue.state_of(forgotten) is None


def test_finding_the_old_uses_the_index(queue):
    """Pruning reads only old rows of one state, so it is fast however much is kept."""
    queue.set_now()
    for _ in range(3):
        queue.make_finished()
    queue.execute(
        "insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses,"
        " queue, source, task)"
        " select gen_random_uuid(), 1, -n, 'succeeded', 'succeeded', outlive.now() + n * interval '1 s', 0, 0, 0,"
        " 'default', '', 'work'"
        " from generate_series(60, 5060) n"
    )
    queue.set_now(later_s=61)
    statement = store.prune_finished(State.SUCCEEDED, keep_s=60)
    scans = [one for one in queue.plan(statement.text, statement.parameters) if one.get("Relation Name") == "attempts"]
    assert max(one["Actual Rows"] * one["Actual Loops"] for one in scans) == 3
    assert {one["Node Type"] for one in scans} <= {"Index Scan", "Index Only Scan"}


def test_workers_that_are_gone_for_long_enough_are_forgotten(queue):
    queue.set_now()
    long_ago, lately = NOON - timedelta(days=8), NOON - timedelta(days=6)
    for state_of_it in ("active", "stale", "draining", "dead", "stopped"):
        queue.register_worker(new_worker(), name=f"old {state_of_it}", state=state_of_it, last_seen=long_ago)
        queue.register_worker(new_worker(), name=f"new {state_of_it}", state=state_of_it, last_seen=lately)
    queue.run(store.prune_workers(keep_s=7 * DAY_S))
    kept = {f"new {one}" for one in ("active", "stale", "draining", "dead", "stopped")}
    assert set(queue.values("select name from outlive.workers")) == kept | {"old active", "old stale", "old draining"}


def test_a_dead_worker_is_remembered_while_it_has_an_attempt(queue):
    queue.set_now()
    queue.register_worker(last_seen=NOON - timedelta(days=8))
    queue.make()
    (claimed,) = queue.claim()
    queue.execute("update outlive.workers set state = 'dead'")
    queue.run(store.prune_workers(keep_s=7 * DAY_S))
    assert queue.count("workers") == 1
    queue.end(Ended(claimed.token))
    queue.run(store.prune_workers(keep_s=7 * DAY_S))
    assert queue.count("workers") == 0


MONTH_S = 30 * DAY_S


def test_a_task_is_forgotten_that_no_worker_has_and_no_job_is_of(queue):
    queue.set_now()
    for name in ("idle", "served", "finished", "waiting"):
        queue.register_task(name=name)
    queue.register_worker()
    queue.run(store.tell_tasks(WORKER, ["served"]))
    queue.make_finished(task="finished")
    queue.make("waiting")
    queue.set_now(later_s=MONTH_S)
    queue.run(store.prune_unused(keep_s=MONTH_S))
    assert queue.count("tasks") == 4
    queue.set_now(later_s=MONTH_S + 1)
    queue.register_task(name="new")
    queue.run(store.prune_unused(keep_s=MONTH_S))
    assert queue.values("select name from outlive.tasks order by 1") == ["finished", "new", "served", "waiting"]


def test_a_source_is_forgotten_that_only_jobs_named_and_nothing_uses(queue):
    queue.set_now()
    queue.run(store.register_sources([SourceLimits("declared")]))
    for name in ("idle", "used", "set", "paused"):
        queue.run(store.cancel([queue.make(source=name)]))
    queue.make(source="waited for")
    queue.run(store.set_source("set", {"burst": 3}))
    queue.run(store.pause_source("paused"))
    queue.set_now(later_s=MONTH_S + 1)
    queue.run(store.count_outcomes([("used", None, True)]))
    queue.run(store.prune_unused(keep_s=MONTH_S))
    kept = queue.values("select name from outlive.sources order by 1")
    assert kept == ["declared", "paused", "set", "used", "waited for"]


def test_a_queue_that_is_no_longer_paused_is_forgotten(queue):
    for name in ("resumed", "paused"):
        queue.run(store.pause_queue(name))
    queue.run(store.resume_queue("resumed"))
    queue.run(store.prune_unused(keep_s=MONTH_S))
    assert queue.values("select name from outlive.queues") == ["paused"]
