"""Jobs that a test runs in its own process, with the statements of a worker."""

import asyncio
import os
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

import outlive
from outlive import Outcome, State
from outlive.pytest import Ran
from tests.plugin import shop


def ends(ran: list[Ran]) -> list[tuple[str, Outcome, State]]:
    return [(one.task.rpartition(".")[2], one.outcome, one.state) for one in ran]


def test_a_job_runs_here_and_has_its_result(outlive_jobs):
    job = shop.send.enqueue(7, copy=True)
    (ran,) = outlive_jobs.run()
    assert (ran.job_id, ran.outcome, ran.state, ran.result) == (
        job.id,
        Outcome.SUCCEEDED,
        State.SUCCEEDED,
        "7 and copy",
    )
    assert job.result(5) == "7 and copy"
    assert shop.seen == [(7, 1, None)]
    assert outlive_jobs.run() == []
    with pytest.raises(outlive.NoJob):
        outlive.current()


def test_what_an_app_runs_before_the_first_job_of_a_process_runs_once(outlive_jobs):
    for _ in range(2):
        shop.price.enqueue("7 EUR")
        assert [one.result for one in outlive_jobs.run()] == [700]
    assert shop.prepared == [os.getpid()]


def test_a_job_may_run_the_other_jobs_and_goes_on(outlive_jobs):
    shop.seen.append(outlive_jobs)
    shop.nest.enqueue()
    shop.price.enqueue("7 EUR")
    (ran,) = outlive_jobs.run(raising=True)
    assert ran.result == [700]
    with pytest.raises(outlive.NoJob):
        outlive.current()


def test_a_job_that_fails_is_retried_when_its_time_has_come(outlive_jobs):
    job = shop.send.enqueue(-1)
    (ran,) = outlive_jobs.run()
    assert (ran.outcome, ran.state, ran.error) == (Outcome.FAILED, State.RETRYABLE, "ValueError: there is no order -1")
    assert isinstance(ran.exception, ValueError)
    assert outlive_jobs.run() == []
    outlive_jobs.advance("1h 30m")  # The pause is an hour, and up to a quarter more.
    assert [one.attempt for one in outlive_jobs.run(queue="mail")] == [2]
    assert [(one.attempt, one.state) for one in outlive_jobs.run(queue="mail", delayed=True)] == [(3, State.FAILED)]
    assert shop.seen == [(-1, 1, None), (-1, 2, 1), (-1, 3, 2)]
    assert job.status() == State.FAILED


def test_a_kept_step_is_not_taken_again_here_either(outlive_jobs):
    shop.deliver.enqueue(7)
    assert [(one.attempt, one.result) for one in outlive_jobs.run()] == [(1, None), (2, 700)]
    assert shop.seen == [("charge", 7)]


def test_relaxed_steps_and_those_of_once_are_taken_again_after_a_rerun_and_not_before(outlive_jobs):
    job = shop.book.enqueue(7)
    assert [(one.attempt, one.result) for one in outlive_jobs.run()] == [(1, None), (2, 7)]
    assert shop.seen == [("weigh", 7), ("book", 7)]
    with psycopg.connect(outlive_jobs.url) as connection:
        connection.execute("select outlive.rerun(%s, 'once:ledger')", [job.id])
    assert [(one.attempt, one.result) for one in outlive_jobs.run()] == [(3, 7)]
    assert shop.seen == [("weigh", 7), ("book", 7), ("book", 7)]


@pytest.mark.parametrize("what", ["Job", "task"])
def test_a_job_that_gathers_something_else_than_jobs_to_enqueue_is_told_what_to_pass(outlive_jobs, what):
    shop.gather_wrongly.enqueue(what)
    ran = outlive_jobs.run()[0]
    assert ran.error.startswith("BadArguments: ")
    assert what in ran.error
    assert "is no request for a job: pass task.job(…)" in ran.error


def test_the_clock_moves_over_sleeps_and_signals_are_received_here_too(outlive_jobs):
    job = shop.deliver_later.enqueue(7)
    assert outlive_jobs.run() == []
    assert job.status() is State.SUSPENDED
    outlive_jobs.advance("3d")
    outlive_jobs.run(queue="default")
    assert job.status() is State.SUSPENDED
    job.send("packed", ["1 EUR", "2 EUR"])
    assert ends(outlive_jobs.run(queue="default"))[-3:] == [
        ("price", Outcome.SUCCEEDED, State.SUCCEEDED),
        ("price", Outcome.SUCCEEDED, State.SUCCEEDED),
        ("deliver_later", Outcome.SUCCEEDED, State.SUCCEEDED),
    ]
    assert job.result(5) == [100, 200]
    assert shop.seen.count(("charge", 7)) == 1


def test_a_delayed_run_moves_the_clock_over_all_waits(outlive_jobs):
    before, job, other = outlive_jobs.now(), shop.deliver_later.enqueue(7), shop.adeliver_later.enqueue()
    other.send("packed", ["3 EUR"])
    outlive_jobs.run(delayed=True)
    assert (job.result(5), other.result(5)) == ([], [300])
    assert outlive_jobs.now() - before > timedelta(days=10)


def test_a_job_that_waits_can_be_cancelled_and_goes_on_eagerly(outlive_jobs):
    job = shop.adeliver_later.enqueue()
    with outlive_jobs.eager():
        other = shop.adeliver_later.enqueue()
        assert (other.status(), job.cancel()) == (State.SUSPENDED, True)
        outlive_jobs.advance("3d")
        other.send("packed", [])
        assert (other.status(), job.status()) == (State.SUCCEEDED, State.CANCELLED)


def test_what_a_job_raises_can_be_raised_here(outlive_jobs):
    job = shop.send.enqueue(-1)
    with pytest.raises(ValueError, match="there is no order -1") as caught:
        outlive_jobs.run(raising=True)
    assert caught.value.__notes__ == [f"in attempt 1 of job {job.id}, which is retryable now"]
    assert caught.traceback[-1].name == "send"
    assert job.status() == State.RETRYABLE


@pytest.mark.parametrize("is_async", [True, False])
def test_an_async_job_may_wait_for_others_also_in_an_async_test(outlive_jobs, is_async):
    shop.total.enqueue(["1 EUR", "2 EUR"])

    async def within_a_loop() -> list[Ran]:
        return outlive_jobs.run()

    ran = asyncio.run(within_a_loop()) if is_async else outlive_jobs.run()
    assert [(one.task.rpartition(".")[2], one.result) for one in ran] == [
        ("price", 100),
        ("price", 200),
        ("total", 300),
    ]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_job_of_a_shared_task_has_what_its_process_opens_for_such_jobs(outlive_jobs, is_async):
    shop.fetch.enqueue(7)

    async def within_a_loop() -> list[Ran]:
        return outlive_jobs.run()

    [ran] = asyncio.run(within_a_loop()) if is_async else outlive_jobs.run()
    assert (ran.outcome, ran.result) == (Outcome.SUCCEEDED, (os.getpid(), ["opened"]))
    assert shop.seen == ["opened", "closed"]


def test_jobs_that_wait_for_others_and_batches_follow(outlive_jobs):
    with shop.app.batch("prices", on_done=shop.remember.job("all")) as batch:
        prices = [shop.price.using(batch=batch).enqueue(text) for text in ("3 EUR", "none")]
    shop.remember.using(after=prices[0]).enqueue("first")
    outlive_jobs.run()
    assert (batch.counts().succeeded, batch.counts().left) == (1, 1)
    outlive_jobs.run(delayed=True)
    assert batch.counts().done
    assert {one.dedupe_key: one.data for one in shop.app.records("names")} == {
        "first": {"inputs": [300]},
        "all": {"inputs": []},
    }
    assert asyncio.run(shop.app.arecords("names")) == shop.app.records("names")


@pytest.mark.parametrize(("order", "made"), [(5, 1), (-5, 0)])
def test_a_job_ends_in_its_own_transaction_or_fails_with_it(outlive_jobs, order, made):
    shop.charge.enqueue(order)
    first, *spawned = outlive_jobs.run()
    assert (first.outcome is Outcome.SUCCEEDED, first.state is State.SUCCEEDED, len(spawned)) == (made, made, made)
    assert made or first.error == ("ctx.complete was rolled back: the job's effects and its completion did not happen")
    with psycopg.connect(outlive_jobs.url) as connection:
        found = connection.execute("select to_regclass('charges') is not null").fetchone()
    assert found == (bool(made),)


def test_the_rate_of_a_source_makes_no_test_wait(outlive_jobs):
    for number in range(3):
        shop.ask.enqueue(number)
    assert [one.result for one in outlive_jobs.run()] == [0, 1, 2]


def test_the_jobs_of_one_queue_run_and_the_urgent_ones_first(outlive_jobs):
    shop.price.enqueue("1 EUR")
    shop.send.using(priority=9).enqueue(1)
    shop.send.using(priority=0).enqueue(2)
    assert [one.result for one in outlive_jobs.run(queue="mail")] == ["2", "1"]
    assert [one.result for one in outlive_jobs.run()] == [100]


def test_a_job_that_enqueues_itself_does_not_run_forever(outlive_jobs):
    shop.again.enqueue()
    with pytest.raises(outlive.OutliveError, match=r"more than 20 attempts have run, most of .*again: does"):
        outlive_jobs.run(limit=20)


def test_a_job_of_an_unknown_task_is_named(outlive_jobs):
    with psycopg.connect(outlive_jobs.url) as connection:
        connection.execute("select outlive.enqueue('elsewhere.task', '{}')")
    with pytest.warns(pytest.PytestWarning, match=r"1 jobs of elsewhere.task are due and did not run"):
        assert outlive_jobs.run() == []


def test_a_test_that_a_job_fails_or_stops_is_over(outlive_jobs, monkeypatch):
    def stop(text: str) -> int:
        pytest.fail("the job says so")

    monkeypatch.setattr(shop.price, "function", stop)
    job = shop.price.enqueue("1 EUR")
    with pytest.raises(pytest.fail.Exception, match="the job says so"):
        outlive_jobs.run()
    assert job.status() == State.RETRYABLE


def test_what_an_app_runs_around_jobs_runs_here_too(outlive_jobs, monkeypatch):
    noted: list[str] = []

    def note() -> Iterator[None]:
        noted.append(outlive.current().task)
        yield
        noted.append("after")

    monkeypatch.setattr(shop.app, "surroundings", [note])
    shop.price.enqueue("7 EUR")
    shop.fetch.enqueue(1)
    outlive_jobs.run()
    assert noted == [shop.price.name, "after", shop.fetch.name, "after"]


def test_eager_jobs_run_where_they_are_enqueued(outlive_jobs):
    async def enqueue() -> int:
        return await (await shop.total.aenqueue(["4 EUR"])).aresult(0)

    with outlive_jobs.eager():
        assert shop.send.enqueue(3).status() == State.SUCCEEDED
        assert asyncio.run(enqueue()) == 400
        with pytest.raises(ValueError, match="there is no order"):
            shop.send.enqueue(-3)
        with psycopg.connect(outlive_jobs.url) as connection:
            later = shop.send.using(connection=connection).enqueue(4)
    assert later.status() == State.PENDING
    assert shop.send.enqueue(5).status() == State.PENDING
    assert isinstance(later.id, UUID)


def test_the_result_of_a_job_that_waits_for_its_retry_says_how_to_run_it(outlive_jobs):
    with (
        outlive_jobs.eager(raising=False),
        pytest.raises(TimeoutError, match=r"0 s; .*outlive_jobs\.run\(delayed=True\)"),
    ):
        shop.send.enqueue(-1).result(timeout=0)


def test_no_app_is_eager_in_production() -> None:
    with pytest.raises(outlive.ConfigError, match="eager is not a setting: a job runs in a worker"):
        outlive.App(eager=True)  # type: ignore[call-arg]


def test_results_are_arguments_here_too_and_are_asserted_as_they_were_given(outlive_jobs):
    first, second = shop.price.enqueue("7 EUR"), shop.price.enqueue("2 EUR")
    job = shop.sum_up.enqueue([outlive.result_of(first), outlive.result_of(second)])
    outlive_jobs.assert_enqueued(shop.sum_up, outlive.result_of([first, second]))
    with pytest.raises(AssertionError, match="after is"):
        outlive_jobs.assert_enqueued(shop.sum_up, outlive.result_of([second, first]))
    outlive_jobs.run()
    assert job.result(5) == 900


def test_jobs_expire_and_failures_are_told_here_too(outlive_jobs):
    late = shop.price.using(expires="1m", delay="2m").enqueue("7 EUR")
    bad = shop.price.using(max_attempts=1, on_failed=shop.note_failure).enqueue("no")
    outlive_jobs.run(raising=False)
    assert shop.seen == [(bad.id, "ValueError: invalid literal for int() with base 10: 'no'")]
    outlive_jobs.advance("2m")
    assert [one for one in outlive_jobs.run() if one.task != shop.hourly.name] == []  # That fires if an hour is full.
    assert late.status() is State.CANCELLED


def test_a_job_that_is_retried_with_one_that_it_needs_has_the_results_of_all(outlive_jobs):
    first, failing = shop.price.enqueue("7 EUR"), shop.deliver.using(max_attempts=1).enqueue(3)
    job = shop.sum_up.using(on_failure="cancel").enqueue([outlive.result_of(first), outlive.result_of(failing)])
    outlive_jobs.run(raising=False)
    assert (failing.status(), job.status()) == (State.FAILED, State.CANCELLED)
    failing.retry()
    job.retry()
    assert job.status() is State.BLOCKED
    outlive_jobs.run()
    assert job.result(5) == 1000
