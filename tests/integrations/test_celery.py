"""outlive.celery: code that was written for Celery runs on outlive."""

from uuid import uuid4

import pytest

import outlive
from outlive.celery import Request, app, chain, group, shared_task
from outlive.states import State


@shared_task
def add(a: int, b: int) -> int:
    return a + b


@shared_task(name="total", queue="slow", time_limit=60, ignore_result=True)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task(bind=True, max_retries=1, default_retry_delay=0)
def flaky(self: Request, text: str) -> str:
    """Succeeds at its second try."""
    if self.request.retries == 0:
        raise self.retry(exc=ValueError("not yet"), countdown=0)
    return f"{text} {len(self.request.id)}"


@shared_task(autoretry_for=(ConnectionError,), retry_backoff=True, acks_late=False)
def picky(kind: str) -> None:
    raise ConnectionError if kind == "connection" else ValueError


def test_a_task_is_called_delayed_and_sent_with_options(outlive_jobs):
    id = str(uuid4())
    sent = [add.delay(1, b=2), add.apply_async((3, 4), queue="mail", task_id=id)]
    assert add(1, 2) == 3
    outlive_jobs.run()
    assert [one.get(timeout=5) for one in sent] == [3, 7]
    assert sent[1].id == id


def test_results_go_along_a_chain_and_a_group_has_them_all(outlive_jobs):
    last = chain(add.s(1, 2), add.s(10), add.si(5, 5), add.s(100))()
    results = group(add.s(n, n) for n in range(3)).apply_async()
    summed = total.task.enqueue(outlive.result_of(one.job for one in results))  # In place of a chord.
    outlive_jobs.run()
    assert [last.get(5), [one.get(5) for one in results], summed.result(5)] == [110, [0, 2, 4], 6]


def test_a_bound_task_retries_itself(outlive_jobs):
    result = flaky.delay("done")
    outlive_jobs.run()
    outlive_jobs.run()
    assert result.get(5) == "done 36"


def test_only_the_exceptions_of_autoretry_for_are_retried(outlive_jobs):
    retried, failed = picky.delay("connection"), picky.delay("value")
    outlive_jobs.run()
    assert (retried.job.status(), failed.job.status()) == (State.RETRYABLE, State.FAILED)


def test_options_become_those_of_outlive():
    policy = app.tasks["total"].policy
    assert (policy.queue, policy.timeout_s, policy.max_attempts, policy.backoff_s) == ("slow", 60, 4, (180.0,))
    assert picky.task.policy.on_worker_death == "fail"


def test_what_means_something_else_is_refused_with_what_to_write():
    with pytest.raises(outlive.ConfigError, match=r"rate_limit; did you mean source"):
        shared_task(rate_limit="10/m")(total.task.function)
    with pytest.raises(outlive.ConfigError, match=r"does not take priority: use task.using"):
        add.apply_async((1, 2), priority=9)
