"""Jobs that wait for other jobs, with real workers: their inputs, chains, groups, spawned jobs, and deaths."""

import time
from datetime import date
from uuid import UUID

import pytest

import outlive
from outlive import Outcome, State, result_of
from tests.driving.jobs import finished, outcomes
from tests.processes.linked import (
    Page,
    add_up,
    app,
    complete_in_own_transaction,
    enqueue_a_chain,
    fail,
    fetch,
    inputs,
    lengths,
    number,
    parse,
    parse_any,
    spawn_a_chain,
    spawn_in_the_wrong_order,
    tell,
    text,
    total,
)
from tests.waiting import eventually

TARGET = "tests.processes.linked:app"
MOST_BYTES = 150_000_000


def test_jobs_get_the_results_of_those_that_they_wait_for_in_their_order(start, queue, database_url):
    first, second, third = outlive.chain(number.job(1), total.job(), total.using(after=number.enqueue(5)).job())
    assert [job.status() for job in (first, second, third)] == [State.PENDING, State.BLOCKED, State.BLOCKED]
    start(target=TARGET)
    assert (first.result(timeout=30), second.result(timeout=30), third.result(timeout=30)) == (1, 1, 6)
    group = outlive.group(number.job(n) for n in range(100))
    assert group.then(total.job()).result(timeout=30) == sum(range(100))
    assert [job.result() for job in group] == list(range(100))
    own = complete_in_own_transaction.using(after=[number.enqueue(2), number.enqueue(3)]).enqueue(database_url)
    assert total.using(after=own).enqueue().result(timeout=30) == 5
    needed = [number.enqueue(3), fail.enqueue(), number.enqueue(1), number.enqueue(2)]
    job = inputs.using(after=[*needed, needed[0]], on_failure="proceed").enqueue()
    assert job.result(timeout=30) == [3, None, 1, 2, 3]
    assert inputs.enqueue().result(timeout=30) == []


def test_a_function_gets_the_result_of_another_job_as_its_parameter(start):
    """A large result too, which comes in parts; and the function stays one that can be called."""
    day = date(2030, 1, 2)
    assert parse(Page("ab", day)) == (2, day)
    start(target=TARGET, max_result_bytes="16MB")
    pages = [fetch.enqueue(size, day) for size in (0, 3, 1_200_000)]
    jobs = [parse.enqueue(result_of(page), twice=True) for page in pages]
    assert [job.result(timeout=30) for job in jobs] == [(0, day), (6, day), (2_400_000, day)]


def test_results_of_a_group_of_chains_are_one_list_and_one_that_is_missing_fails_only_a_function_that_needs_it(
    start, queue
):
    group = outlive.group((number.job(n), number.job(n * 10)) for n in range(100))
    added = add_up.enqueue(result_of(group), result_of(number.enqueue(7)))
    late = number.using(expires=0.001).enqueue(1)
    eventually(lambda: queue.value("select expires_at < now() from outlive.expiring"))
    start(target=TARGET)
    assert added.result(timeout=30) == 7 + 10 * sum(range(100))
    assert finished(late) is State.CANCELLED
    with pytest.raises(outlive.JobFailed, match="expired: it had to start by"):
        late.result()
    failed: outlive.Job[Page] = app.get_job(fail.using(on_failed=tell).enqueue().id)
    assert parse_any.using(on_failure="proceed").enqueue(result_of(failed)).result(timeout=30) == "nothing"
    job = parse.using(on_failure="proceed").enqueue(result_of(failed))
    with pytest.raises(outlive.JobFailed, match=r"argument page: .*; there is no result for page"):
        job.result(timeout=30)
    assert outcomes(queue, job) == [Outcome.FAILED]
    result = "select a.result from outlive.attempts a join outlive.jobs j on j.id = a.job_id where j.task like '%%tell'"
    assert eventually(lambda: queue.values(result)) == [f"{failed.id}: ValueError: no"]


@pytest.mark.long
def test_inputs_of_any_size_arrive_whole_and_pass_the_supervisor_in_parts(start):
    sizes = [0.0, 2.5, 0.5, 0.5, 12.0, 0.000002, *[12.0] * 14]
    needed = outlive.group(text.job(size) for size in sizes)
    first = start(target=TARGET, slots=1, max_result_bytes="16MB")
    eventually(lambda: all(job.status() is State.SUCCEEDED for job in needed), within_s=60)
    first.stop()
    worker = start(target=TARGET, slots=1)
    job = needed.then(lengths.job())
    assert job.result(timeout=60) == [int(size * 500_000) for size in sizes]
    assert worker.peak_bytes() < MOST_BYTES


@pytest.mark.long
@pytest.mark.parametrize("on_failure", ["block", "proceed", "cancel"])
def test_a_failed_job_with_50_000_dependents_holds_up_no_other_job(start, queue, on_failure):
    """Its end is written, and its neighbours' jobs begin in time."""
    needed = fail.using(delay=3600).enqueue()
    waiting = number.using(after=needed, on_failure=on_failure, queue="other")
    app.enqueue_many(waiting.job(n) for n in range(50_000))
    start(target=TARGET, slots=4, queues="default")
    assert number.enqueue(1).result(timeout=30) == 1
    queue.execute("update outlive.waiting set ready_at = now() where id = %s", [needed.id])
    worst_s, ended_at = 0.0, None
    while ended_at is None or time.monotonic() - ended_at < 10:
        started = time.monotonic()
        assert number.enqueue(2).result(timeout=30) == 2
        worst_s = max(worst_s, time.monotonic() - started)
        if ended_at is None and needed.status() is State.FAILED:
            ended_at = time.monotonic()
    assert worst_s < 2


def test_jobs_may_spawn_and_enqueue_chains_and_fail_for_good_with_one_that_is_refused(start, queue):
    start(target=TARGET)
    spawn_a_chain.enqueue(20).result(timeout=30)
    result = (
        "select a.result from outlive.attempts a join outlive.jobs j on j.id = a.job_id where j.task like '%%total'"
    )
    assert eventually(lambda: queue.execute(result).fetchall()) == [(41,)]
    with pytest.raises(outlive.JobFailed) as failed:
        spawn_in_the_wrong_order.enqueue().result(timeout=30)
    assert failed.value.attempt is not None
    error = str(failed.value.attempt.error)
    assert error.startswith("a job that it spawns can't be enqueued: job ")
    assert error.endswith("a job can only wait for jobs that exist or come before it in the same call")
    last = enqueue_a_chain.enqueue(7).result(timeout=30)
    assert app.get_job(UUID(last)).result(timeout=30) == 7


def test_an_end_waits_for_a_job_that_is_locked_and_holds_up_no_other(start, connect):
    """As when another job that is needed ends in its own transaction, which stays open."""
    connection = connect()
    needed = number.enqueue(1)
    job = total.using(after=needed).enqueue()
    with connection.transaction():
        connection.execute("select from outlive.held where id = %s for update", [job.id])
        worker = start(target=TARGET)
        worker.says("1 results wait for a lock that another transaction holds")
        assert number.enqueue(2).result(timeout=30) == 2
        assert needed.status() is State.RUNNING
    assert job.result(timeout=30) == 1
    assert needed.result() == 1


def test_an_end_that_a_deadlock_has_failed_is_written_again_at_no_cost(start, queue):
    queue.execute("create sequence public.deadlocks")
    queue.execute(
        "create function public.fail() returns trigger language plpgsql as $$ begin"
        " if nextval('public.deadlocks') <= 3 then raise exception using errcode = '40P01'; end if; return old; end $$"
    )
    queue.execute("create trigger fail before delete on outlive.held for each row execute function public.fail()")
    needed = number.enqueue(1)
    job = total.using(after=needed).enqueue()
    start(target=TARGET)
    assert job.result(timeout=60) == 1
    assert queue.value("select last_value from public.deadlocks") == 4
    for one in (needed, job):
        assert outcomes(queue, one) == [Outcome.SUCCEEDED]


@pytest.mark.long
def test_a_fan_in_of_10_000_is_released_within_two_seconds_of_the_last(start, queue):
    gate = outlive.group(number.job(1) for _ in range(9_999))
    workers = [start(target=TARGET, slots=4) for _ in range(2)]
    job = total.using(after=[*gate, last := number.using(delay="1h").enqueue(1)]).enqueue()
    eventually(lambda: queue.value("select unmet from outlive.held where id = %s", job.id) == 1, within_s=120)
    queue.execute("update outlive.waiting set ready_at = outlive.now() where id = %s", [last.id])
    assert finished(last) is State.SUCCEEDED
    ended = time.monotonic()
    assert job.result(timeout=60) == 10_000
    waited = "select extract(epoch from a.started_at - b.ended_at) from outlive.attempts a, outlive.attempts b"
    waited += " where a.job_id = %s and b.job_id = %s"
    started_s = float(queue.value(waited, job.id, last.id))
    print(f"started {started_s * 1000:.1f} ms after the last end, result after {time.monotonic() - ended:.2f} s")
    assert started_s < 2
    assert all(worker.peak_bytes() < MOST_BYTES for worker in workers)
