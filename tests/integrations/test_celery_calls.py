"""outlive.celery: limits of time, arguments and signatures are what code that was written for Celery expects."""

import signal
import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

import outlive
from outlive import config
from outlive.celery import (
    AsyncResult,
    Request,
    SoftTimeLimitExceeded,
    app,
    chain,
    chord,
    group,
    shared_task,
)


@pytest.fixture
def outlive_apps():
    return [app]


@shared_task
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@shared_task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task(bind=True)
def due(self: Request, when: datetime, days: int = 0) -> list[Any]:
    return [when.year, days, self.request.args == [when, days], self.request.kwargs]


def work() -> None:
    threading.Event().wait(30)


@shared_task(soft_time_limit=0.2, time_limit=60, max_retries=3)
def patient(caught: bool) -> str:
    try:
        work()
    except SoftTimeLimitExceeded as over:
        if caught:
            return f"partial: {over}"
        raise
    return "whole"


@shared_task(bind=True, soft_time_limit=0.2, autoretry_for=(SoftTimeLimitExceeded,), default_retry_delay=0)
def again(self: Request) -> int:
    if self.request.retries == 0:
        work()
    return self.request.retries


@shared_task(soft_time_limit=0.5)
def rested() -> str:
    outlive.current().sleep("1s")
    threading.Event().wait(0.1)  # For an alarm that has waited.
    return "rested"


@shared_task
def fails(number: int) -> None:
    raise ValueError(number)


@shared_task
def bare(job, error):
    return [job, error]


@shared_task
def told(job: UUID, error: str) -> str:
    return str(job)


@shared_task
def tell_own(job: UUID, error: str) -> str:
    return str(job)


@shared_task(default_retry_delay=0)
def leave() -> None:
    raise SystemExit(3)


def test_a_task_may_return_what_it_has_when_its_soft_time_limit_is_over(outlive_jobs):
    partial, uncaught, retried = patient.delay(True), patient.delay(False), again.delay()
    ran = outlive_jobs.run(in_processes=True)
    assert partial.get(5) == "partial: the task took longer than 0.2 s"
    assert [one.error for one in ran if str(one.job_id) == uncaught.id] == [
        "SoftTimeLimitExceeded: the task took longer than 0.2 s"
    ]
    assert (uncaught.state, retried.get(5)) == ("FAILURE", 1)


def test_a_call_of_the_function_has_no_soft_time_limit(monkeypatch):
    limited: list[bool] = []  # A test has a timer of its own, of a minute or more.
    monkeypatch.setitem(globals(), "work", lambda: limited.append(0 < signal.getitimer(signal.ITIMER_REAL)[0] < 1))
    assert (patient(True), limited) == ("whole", [False])


def test_a_soft_time_limit_counts_no_wait_in_a_process_that_is_kept(start, database_url):
    start(target=f"{__name__}:app", slots=1)
    before = app.configure(config.load(flags={"database_url": database_url}))
    try:
        assert rested.delay().get(30) == "rested"
    finally:
        app.configure(before)


def test_a_soft_time_limit_of_an_async_task_is_refused_with_what_to_write():
    async def fetch() -> None: ...

    with pytest.raises(outlive.ConfigError, match=r"not for an async def: write `async with asyncio\.timeout"):
        shared_task(name="fetch", soft_time_limit=3)(fetch)


def test_a_task_that_exits_is_not_retried(outlive_jobs):
    left = leave.delay()
    [ran] = outlive_jobs.run(in_processes=True)
    assert (ran.error, left.state) == ("SystemExit: 3", "FAILURE")


def test_a_bound_task_gets_its_arguments_as_annotated(outlive_jobs):
    when = datetime(2030, 1, 31, tzinfo=UTC)
    sent = due.delay(when, days=2)
    outlive_jobs.run()
    assert sent.get(5) == [2030, 2, True, {}]
    with pytest.raises(outlive.BadArguments, match="argument when: expected datetime, got str"):
        due.delay("tomorrow")
    with pytest.raises(outlive.BadArguments, match="missing a required argument: 'when'"):
        due.delay()


def test_a_signature_is_changed_copied_called_and_given_more_arguments(outlive_jobs):
    signature = add.s(1)
    signature.set(queue="slow")
    assert (signature.options, signature.clone((5,)).args, signature.args) == ({"queue": "slow"}, (5, 1), (1,))
    assert (signature(), signature(5), add.si(1, 2).clone((5,)).args) == (2, 6, (1, 2))
    sent = [signature.delay(5), add.s(1).apply_async((), {"b": 7}), chain(add.s(2), add.s(3))(4), group(add.s())(8)]
    outlive_jobs.run()
    assert [one.get(5) for one in sent] == [6, 8, 9, [9]]


def test_a_group_in_a_group_is_a_part_of_it(outlive_jobs):
    numbers = group(group(add.s(1), add.s(2)), add.s(3))()
    whole = chord([group(add.s(1), add.s(2)), add.s(3)])(total.s())
    outlive_jobs.run()
    assert (numbers.get(5), whole.get(5)) == ([2, 3, 4], 9)


def test_an_argument_that_is_not_annotated_is_refused_with_the_annotation_that_it_needs():
    with pytest.raises(outlive.BadArguments, match=r"argument job is of type UUID, .*; annotate job: UUID"):
        bare.delay(UUID(int=1), "")
    with pytest.raises(outlive.BadArguments, match=r"argument error is of type datetime, .*; annotate error: datetime"):
        bare.s(1, datetime(2030, 1, 1)).delay()


def test_a_task_without_annotations_is_told_of_a_failure_too(outlive_jobs):
    failed = fails.apply_async((7,), on_failed=bare)
    outlive_jobs.run(delayed=True)
    [said] = outlive_jobs.enqueued(bare.task)
    assert AsyncResult(str(said.id)).get(5) == [failed.id, "ValueError: 7"]


def test_a_canvas_tells_a_task_which_of_its_jobs_has_failed(outlive_jobs):
    own = fails.s().set(on_failed=tell_own)
    chain(add.s(1), group(fails.s(), own), total.s()).apply_async(on_failed=told)
    outlive_jobs.run()
    failed = {str(job.id) for job in outlive_jobs.enqueued(fails.task)}
    said = [[AsyncResult(str(job.id)).get(5) for job in outlive_jobs.enqueued(one.task)] for one in (told, tell_own)]
    assert ([len(one) for one in said], {*said[0], *said[1]}) == ([1, 1], failed)


def test_a_chord_calls_the_task_of_its_body_once_if_jobs_of_its_header_fail(outlive_jobs):
    header = [fails.s(1), add.s(1, 1), fails.s(2), fails.s(3).set(on_failed=tell_own)]
    chord(header)(total.s().set(on_failed=told))
    (add.s(1, 1) | group(fails.s(), fails.s()) | total.s().set(on_failed=told) | add.s(1)).delay()
    chord(header)(total.s() | add.s(1), on_failed=told)
    chord([add.s(1, 1), add.s(2, 2)])(fails.s(), on_failed=told)
    with pytest.raises(
        outlive.ConfigError, match=r"a canvas takes no countdown: write \.set\(countdown=…\) on its sig"
    ):
        chord(header)(total.s(), countdown=1)
    outlive_jobs.run()
    failed = {str(job.id) for job in outlive_jobs.enqueued(fails.task)}
    said = [[AsyncResult(str(job.id)).get(5) for job in outlive_jobs.enqueued(one.task)] for one in (told, tell_own)]
    assert ([len(one) for one in said], {*said[0], *said[1]} < failed) == ([4, 2], True)


@pytest.mark.parametrize("option", ["countdown", "expires"])
def test_a_time_that_would_count_from_the_call_is_refused_for_a_later_step(outlive_jobs, option):
    first = chain(add.s(1).set(**{option: 3600}), add.s(2))()
    with pytest.raises(outlive.ConfigError, match=rf"^{option} of a step that follows another would count from the c"):
        chain(add.s(1), add.s(2).set(**{option: 3600}))()
    outlive_jobs.run(delayed=True)
    assert first.get(5) == 4


def test_a_misspelt_option_is_refused_with_the_one_that_is_near():
    with pytest.raises(outlive.ConfigError, match=r"shared_task has the unknown option ack_late; did you mean acks_l"):
        shared_task(ack_late=True)
    with pytest.raises(outlive.ConfigError, match=r"unknown option routing_key; leave it out: it is for a broker$"):
        shared_task(routing_key="mail.send")


def test_a_call_may_have_a_time_limit_of_its_own():
    limited = add.s(1).set(time_limit=7).after(None)
    assert limited.request.options == b'{"timeout_s":7.0}'


def test_a_result_takes_an_app_and_a_revoke_no_signal(outlive_jobs):
    own = outlive.App()
    assert (AsyncResult(add.delay(1).id, app=own).state, AsyncResult(str(uuid4()), app=own).app) == ("PENDING", own)
    with pytest.raises(outlive.ConfigError, match=r"leave out signal: a job that runs gets SIGTERM, and SIGKILL after"):
        AsyncResult(str(uuid4())).revoke(terminate=True, signal="SIGKILL")


def test_a_shared_task_has_the_name_and_the_text_of_its_function():
    assert (add.__name__, add.__doc__, add.__module__, add.run(2)) == ("add", "Adds two numbers.", __name__, 3)
