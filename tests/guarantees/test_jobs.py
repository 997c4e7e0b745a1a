"""Jobs."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from outlive import DuplicateJob, State, store
from outlive.client.task import Task
from outlive.model import new_job_id
from outlive.states import TRANSITIONS, Outcome
from tests import faults
from tests.driving.hand import Hand
from tests.driving.jobs import attempts, finished, outcomes
from tests.driving.making import NOON
from tests.waiting import eventually

DAY_S = 86400.0
AddTask = Task[[int, int], int, int]


def test_there_are_five_states_and_four_more():
    assert {str(state) for state in State} == {
        *("pending", "running", "retryable", "succeeded", "failed"),
        *("blocked", "suspended", "quarantined", "cancelled"),
    }
    named = {state for one in TRANSITIONS for state in (*one.before, one.after)}
    assert named == {*State, None}


def test_a_job_passes_through_its_states(task, hand):
    job = task.using(max_attempts=2).enqueue(1, 2)
    seen = [job.status()]
    hand.at(NOON)
    for _ in range(2):
        (claimed,) = hand.claim()
        seen.append(job.status())
        hand.end(claimed, Outcome.FAILED, after_s=0)
        seen.append(job.status())
    hand.connection.run(store.retry([job.id]))
    hand.run(result=b"3")
    seen.append(job.status())
    assert seen == ["pending", "running", "retryable", "running", "failed", "succeeded"]
    assert job.result(timeout=0) == 3


def test_a_finished_job_does_not_change_any_more(task, hand):
    job = task.enqueue(1, 2)
    claimed = hand.run()
    assert not hand.end(claimed, Outcome.FAILED)
    for verb in (store.cancel, store.retry, store.release):
        assert [one.changed for one in hand.connection.run(verb([job.id]))] == [False]
    assert hand.connection.run(store.expire()) == []
    assert job.status() is State.SUCCEEDED


def delays_after(hand: Hand, outcome: Outcome, times: int) -> list[float]:
    """Run the only job so many times, each time as soon as it is ready; returns how long it waits after each end."""
    moment, waited = hand.at(NOON), []
    for _ in range(times):
        hand.run(outcome)
        ready_at = hand.value("select ready_at from outlive.waiting")
        waited.append((ready_at - moment).total_seconds())
        moment = hand.at(ready_at)
    return waited


def test_backoff_doubles_from_its_base_up_to_its_cap(app, hand):
    task = app.task(max_attempts=20)(faults.add.function)
    hand.knows(task)
    task.enqueue(1)
    full = [min(60.0 * 2**n, DAY_S) for n in range(14)]
    assert full[-1] == full[-2] == full[-3] == DAY_S
    for waited, most in zip(delays_after(hand, Outcome.FAILED, 14), full, strict=True):
        assert most / 2 <= waited <= most


def test_jitter_spreads_the_delays_between_half_and_all(app, hand):
    app.enqueue_many([app.task(faults.add.function).job(n) for n in range(100)])
    hand.at(NOON)
    for claimed in hand.claim():
        hand.end(claimed, Outcome.FAILED)
    waited = [(ready_at - NOON).total_seconds() for (ready_at,) in hand.rows("select ready_at from outlive.waiting")]
    assert 30 <= min(waited) < 40
    assert 50 < max(waited) <= 60


def test_a_job_is_claimable_only_after_its_next_retry_at(task, hand):
    job = task.enqueue(1, 2)
    hand.at(NOON)
    hand.run(Outcome.FAILED)
    next_retry_at = hand.value("select next_retry_at from outlive.job_states where id = %s", job.id)
    hand.at(next_retry_at - timedelta(milliseconds=1))
    assert hand.claim() == []
    hand.at(next_retry_at)
    assert [one.id for one in hand.claim()] == [job.id]


@pytest.mark.parametrize(
    ("backoff", "full"), [(["10s", "1m", 5], [10, 60, 5, 5]), (lambda n: 100.0 * (n + 1), [100, 200, 300])]
)
def test_a_task_may_give_a_list_of_delays_or_a_function_of_n(app, hand, backoff, full):
    task = app.task(backoff=backoff)(faults.add.function)
    hand.knows(task)
    task.enqueue(1)
    for some, most in zip(delays_after(hand, Outcome.FAILED, len(full)), full, strict=True):
        assert most / 2 <= some <= most


def test_failures_and_crashes_count_together(app, hand):
    task = app.task(backoff=[10, 100, 1000], max_crashes=5)(faults.add.function)
    hand.knows(task)
    task.enqueue(1)
    first, second = delays_after(hand, Outcome.CRASHED, 2)
    (claimed,) = hand.claim()
    hand.end(claimed, Outcome.FAILED)
    third = (hand.value("select ready_at from outlive.waiting") - hand.value("select outlive.now()")).total_seconds()
    assert 5 <= first <= 10 < 50 <= second <= 100 < 500 <= third <= 1000


def test_a_repeated_enqueue_is_a_no_op(task, hand):
    again = task.using(id=new_job_id())
    first, second = again.enqueue(1, 2), again.enqueue(1, 2)
    assert first == second
    assert hand.value("select count(*) from outlive.waiting") == 1
    hand.run()
    assert again.enqueue(1, 2).status() is State.SUCCEEDED


@pytest.mark.parametrize("many", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_hundred_thousand_jobs_are_enqueued_at_once_and_in_order(app, task, hand, many):
    jobs = app.enqueue_many([task.job(n, 0) for n in range(many)])
    assert len({job.id for job in jobs}) == many
    found = hand.rows(
        "select j.id, (j.args->>'a')::int from outlive.waiting w join outlive.jobs j using (id) order by w.ready_at"
    )
    assert found == [(job.id, n) for n, job in enumerate(jobs)]
    assert jobs[0].status() is jobs[-1].status() is State.PENDING


def test_many_jobs_are_enqueued_all_or_none(app, task, hand):
    task.using(dedupe_key="taken").enqueue(1, 2)
    many = [task.job(n, 0) for n in range(5000)]
    with pytest.raises(DuplicateJob):
        app.enqueue_many([*many, task.using(dedupe_key="taken", on_conflict="raise").job(1, 2)])
    assert hand.value("select count(*) from outlive.jobs") == 1


def test_a_job_may_be_delayed_or_have_its_time(task, hand):
    before = hand.value("select clock_timestamp()")
    delayed = task.using(delay="5m").enqueue(1, 2)
    timed = task.using(run_at=NOON).enqueue(1, 2)
    ready = dict(hand.rows("select id, ready_at from outlive.waiting"))
    assert ready[timed.id] == NOON
    assert timedelta(minutes=5) <= ready[delayed.id] - before < timedelta(minutes=6)


def test_priority_0_is_the_most_urgent_and_5_the_default(task, hand):
    made = {n: task.using(priority=n).enqueue(n, 0).id for n in (9, 6, 0, 7, 4)}
    made[5] = task.enqueue(1, 2).id
    assert [hand.claim(limit=1)[0].id for _ in made] == [made[n] for n in sorted(made)]


def test_a_dedupe_key_is_unique_among_the_unfinished_jobs_of_a_task(task, hand):
    first = task.using(dedupe_key="page 1").enqueue(1, 2)
    assert task.using(dedupe_key="page 1").enqueue(1, 2) == first
    assert task.using(dedupe_key="page 2").enqueue(1, 2) != first
    with pytest.raises(DuplicateJob) as refused:
        task.using(dedupe_key="page 1", on_conflict="raise").enqueue(1, 2)
    assert refused.value.existing == first.id
    replacing = task.using(dedupe_key="page 1", on_conflict="replace").enqueue(1, 2)
    assert (first.status(), replacing.status()) == (State.CANCELLED, State.PENDING)
    hand.claim()
    assert task.using(dedupe_key="page 1", on_conflict="replace").enqueue(1, 2) == replacing


def test_a_quarantined_job_counts_as_unfinished(task, hand):
    first = task.using(dedupe_key="page 1", max_crashes=1).enqueue(1, 2)
    hand.run(Outcome.CRASHED, signal="SIGSEGV")
    assert first.status() is State.QUARANTINED
    assert task.using(dedupe_key="page 1").enqueue(1, 2) == first


def test_a_retry_takes_its_key_again_and_is_refused_if_it_is_taken(task, hand):
    first = task.using(dedupe_key="page 1").enqueue(1, 2)
    hand.run(Outcome.FAILED, final=True)
    second = task.using(dedupe_key="page 1").enqueue(1, 2)
    (refused,) = hand.connection.run(store.retry([first.id]))
    assert (refused.changed, refused.note) == (False, f"its dedupe key 'page 1' is taken by job {second.id}")
    second.cancel()
    (taken,) = hand.connection.run(store.retry([first.id]))
    assert (taken.changed, first.status()) == (True, State.PENDING)
    assert task.using(dedupe_key="page 1").enqueue(1, 2) == first


def test_a_job_is_enqueued_inside_the_callers_own_transaction(task, database_url, hand):
    with psycopg.connect(database_url) as callers:
        task.using(connection=callers).enqueue(1, 2)
        assert hand.claim() == []
        callers.rollback()
        job = task.using(connection=callers).enqueue(3, 4)
    assert [one.id for one in hand.claim()] == [job.id]


def test_a_job_is_enqueued_from_plain_sql(hand):
    named = hand.value("""select outlive.enqueue('shop.fetch', '{"a": 1}')""")
    positional = hand.value("select outlive.enqueue('shop.fetch', '[1, 2]')")
    assert {one.id: one.args for one in hand.claim()} == {named: b'{"a": 1}', positional: b"[1, 2]"}


def test_a_paused_queue_is_not_worked_on_until_it_is_resumed(task, hand):
    job = task.using(queue="slow").enqueue(1, 2)
    hand.connection.run(store.pause_queue("slow"))
    assert hand.claim() == []
    assert job.status() is State.PENDING
    hand.connection.run(store.resume_queue("slow"))
    assert [one.id for one in hand.claim()] == [job.id]


def test_jobs_are_retried_cancelled_released_and_pruned_one_or_many(app, task, hand):
    def states(jobs: list[UUID]) -> set[State]:
        return set(hand.connection.run(store.statuses(jobs)).values())

    many = [job.id for job in app.enqueue_many([task.using(max_crashes=1).job(n, 0) for n in range(5)])]
    assert all(one.changed for one in hand.connection.run(store.cancel(many)))
    assert states(many) == {State.CANCELLED}
    assert all(one.changed for one in hand.connection.run(store.retry(many)))
    assert states(many) == {State.PENDING}
    for claimed in hand.claim():
        hand.end(claimed, Outcome.CRASHED)
    assert states(many) == {State.QUARANTINED}
    assert all(one.changed for one in hand.connection.run(store.release(many[:2])))
    assert states(many[:2]) == {State.PENDING}
    assert hand.connection.run(store.prune_jobs(many)) == 3
    assert hand.value("select count(*) from outlive.jobs") == 2


def test_jobs_are_chosen_by_a_filter(task, hand):
    failed = [task.using(queue=queue).enqueue(1, 2).id for queue in ("default", "slow")]
    for claimed in hand.claim():
        hand.end(claimed, Outcome.FAILED, final=True)
    task.enqueue(1, 2)
    wanted = [store.JobFilter(states=(State.FAILED,), queue=queue) for queue in (None, "slow")]
    every, slow = (hand.connection.run(store.find_jobs(one, limit=10)).ids for one in wanted)
    assert (sorted(every), slow) == (sorted(failed), failed[1:])


def test_finished_jobs_go_after_seven_days_failed_ones_after_thirty(task, app, hand):
    hand.at(NOON)
    jobs = [task.using(max_crashes=1).enqueue(n, 0) for n in range(3)]
    succeeded, failed, killer = hand.claim()
    hand.end(succeeded)
    hand.end(failed, Outcome.FAILED, final=True)
    hand.end(killer, Outcome.CRASHED)
    keep_s = {State.SUCCEEDED: app.config.keep_finished_s, State.FAILED: app.config.keep_failed_s}
    assert keep_s == {State.SUCCEEDED: 7 * DAY_S, State.FAILED: 30 * DAY_S}

    def left(days: float) -> int:
        hand.at(NOON, later_s=days * DAY_S)
        for state, kept_s in keep_s.items():
            hand.connection.run(store.prune_finished(state, keep_s=kept_s))
        return int(hand.value("select count(*) from outlive.jobs"))

    assert [left(days) for days in (6.9, 7.1, 29.9, 30.1, 1000)] == [3, 2, 2, 1, 1]
    assert [job.id for job in jobs if job.id == killer.id and job.status() is State.QUARANTINED] == [killer.id]


def test_prune_works_in_batches_that_two_may_share(task, app, new_hand):
    hands = [new_hand(), new_hand()]
    app.enqueue_many([task.job(n, 0) for n in range(400)])
    for claimed in hands[0].claim():
        hands[0].end(claimed)

    def prune(hand: Hand) -> int:
        hand.at(NOON + timedelta(days=3650))
        gone = 0
        while True:
            some, more, _ = hand.connection.run(store.prune_finished(State.SUCCEEDED, keep_s=60, batch=50))
            gone += some
            if not more:
                return gone

    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(prune, hands)) == 400
    assert hands[0].value("select count(*) from outlive.jobs") == 0


@pytest.mark.parametrize(("jobs", "workers"), [(20, 2), pytest.param(20_000, 8, marks=pytest.mark.long)])
def test_each_job_runs_exactly_once(start, queue, tmp_path, jobs, workers):
    effects = tmp_path / "effects"
    effects.mkdir()
    for worker in [start(slots=2, wait=False) for _ in range(workers)]:
        worker.started()
    faults.app.enqueue_many(faults.leave_a_mark.job(str(effects), n) for n in range(jobs))
    left = "select from outlive.waiting union all select from outlive.running limit 1"
    eventually(lambda: not queue.execute(left).fetchall(), within_s=60, what="all jobs have ended")
    ends = queue.execute("select count(*), count(distinct job_id) from outlive.attempts").fetchone()
    assert ends == (jobs, jobs)
    states = queue.execute("select status, count(*) from outlive.job_states group by 1").fetchall()
    assert states == [("succeeded", jobs)]
    marks = {path.name: path.stat().st_size for path in effects.iterdir()}
    assert marks == {str(n): 1 for n in range(jobs)}


def test_retry_fail_and_cancel_decide(start, queue):
    start()
    later, never, dropped = faults.retry_after.enqueue(3600.0), faults.give_up.enqueue(), faults.not_needed.enqueue()
    finished(later, State.RETRYABLE)
    waits = queue.value("select ready_at - outlive.now() from outlive.waiting where id = %s", later.id)
    assert timedelta(minutes=59) < waits <= timedelta(hours=1)
    finished(never, State.FAILED)
    assert [one.error for one in attempts(queue, never)] == ["Fail: never again"]
    finished(dropped, State.CANCELLED)


def test_classes_named_by_the_task_decide_and_others_are_retried(start, queue):
    start()
    named, refused, ordinary = (faults.look_up.enqueue(kind) for kind in ("key", "index", "other"))
    by_default = faults.fail_always.enqueue()
    for job, times in ((named, 3), (refused, 1), (ordinary, 3), (by_default, 5)):
        finished(job, State.FAILED)
        assert outcomes(queue, job) == [Outcome.FAILED] * times
        assert queue.counters(job.id) == (times, 0, 0)
