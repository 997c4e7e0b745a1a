"""outlive.celery: code that was written for Celery runs on outlive."""

from uuid import uuid4

import pytest

import outlive
from outlive.celery import AsyncResult, Request, app, chain, chord, group, route, shared_task
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
    return f"{text} {self.request.id}"


@shared_task(autoretry_for=(ConnectionError,), retry_backoff=True, acks_late=False)
def picky(kind: str) -> None:
    raise ConnectionError if kind == "connection" else ValueError


@shared_task(bind=True, retry_kwargs={"max_retries": 7, "countdown": 5}, retry_jitter=True)
def whoami(self: Request, number: int) -> tuple[str | None, int, int]:
    return self.request.id, self.request.retries, number


def test_a_task_is_called_delayed_and_sent_with_options(outlive_jobs):
    id = str(uuid4())
    sent = [add.delay(1, b=2), add.apply_async((3, 4), queue="mail", task_id=id)]
    assert add(1, 2) == 3
    outlive_jobs.run()
    assert [one.get(timeout=5) for one in sent] == [3, 7]
    assert sent[1].id == id


def test_results_go_along_a_chain_and_a_group_has_them_all(outlive_jobs):
    last = chain(add.s(1, 2), add.s(10), add.si(5, 5), add.s(100))()
    piped = (add.s(1, 2) | add.s(10)).delay()
    results = group(add.s(n, n) for n in range(3)).apply_async()
    assert not results.ready()
    outlive_jobs.run()
    assert (last.get(5), piped.get(5), results.get(5), [one.get(5) for one in results]) == (
        110,
        13,
        [0, 2, 4],
        [0, 2, 4],
    )


def test_the_body_of_a_chord_gets_the_results_of_its_header(outlive_jobs):
    header = [add.s(n, n) for n in range(3)]
    sums = [chord(header)(total.s()), chord(header, total.s())(), (group(*header) | total.s())(), chord([])(total.s())]
    outlive_jobs.run()
    assert [one.get(5) for one in sums] == [6, 6, 6, 0]


def test_chains_and_groups_stand_in_each_other(outlive_jobs):
    sides = group(add.s(1, 1) | add.s(10), add.s(2, 2))
    last = chain([sides, total.s(), group(add.s(n) for n in (100, 200)), total.s().set(queue="mail")])()
    alone = chain(add.s(1, 1), group(add.s(1), add.si(7, 7)))()
    outlive_jobs.run()
    assert (last.get(5), alone.get(5)) == ((12 + 4) * 2 + 300, [3, 14])
    with pytest.raises(outlive.ConfigError, match="put all signatures into one group"):
        group(sides, add.s(1, 1))()
    with pytest.raises(outlive.ConfigError, match="at least one signature"):
        chain()()


def test_a_result_has_the_states_of_celery(outlive_jobs):
    done, stopped, failed = add.delay(1, 2), add.delay(3, 4), picky.delay("value")
    assert (done.state, done.ready()) == ("PENDING", False)
    with pytest.raises(outlive.ConfigError, match="terminate=True"):
        stopped.revoke()
    stopped.revoke(terminate=True)
    outlive_jobs.run()
    assert [AsyncResult(one.id).state for one in (done, stopped, failed)] == ["SUCCESS", "REVOKED", "FAILURE"]
    assert (done.ready(), done.successful(), failed.failed()) == (True, True, True)


def test_a_bound_task_retries_itself(outlive_jobs):
    result = flaky.delay("done")
    outlive_jobs.run()
    outlive_jobs.run()
    assert result.get(5) == f"done {result.id}"


def test_a_bound_task_can_be_called_as_a_function():
    assert whoami(3) == (None, 0, 3)


def test_only_the_exceptions_of_autoretry_for_are_retried(outlive_jobs):
    retried, failed = picky.delay("connection"), picky.delay("value")
    outlive_jobs.run()
    assert (retried.job.status(), failed.job.status()) == (State.RETRYABLE, State.FAILED)


def test_options_become_those_of_outlive():
    policy = app.tasks["total"].policy
    assert (policy.queue, policy.timeout_s, policy.max_attempts, policy.backoff_s) == ("slow", 60, 4, (180.0,))
    assert picky.task.policy.on_worker_death == "fail"
    assert (whoami.task.policy.max_attempts, whoami.task.policy.backoff_s) == (8, (5.0,))


def test_what_means_something_else_is_refused_with_what_to_write():
    with pytest.raises(outlive.ConfigError, match=r"rate_limit; did you mean source"):
        shared_task(rate_limit="10/m")(total.task.function)
    with pytest.raises(outlive.ConfigError, match=r"does not take priority: use task.using"):
        add.apply_async((1, 2), priority=9)
    with pytest.raises(outlive.ConfigError, match=r"does not take link_error: use task.using\(on_failed=…\)"):
        add.apply_async((1, 2), link_error=total.s())


def test_tasks_get_their_queues_by_patterns_that_are_given_before_them(monkeypatch):
    with pytest.raises(outlive.ConfigError, match=r"after the task \S+test_celery.add was declared: call it above"):
        route({"*": "mail"})
    monkeypatch.setattr(app, "tasks", {})
    monkeypatch.setattr(app, "queue_of", {})
    route({"shop.mail.*": {"queue": "mail"}, "shop.*": "shop"})
    named = [shared_task(name=f"shop.{name}")(add.task.function) for name in ("mail.send", "pay")]
    own = shared_task(name="shop.mail.bulk", queue="slow")(add.task.function)
    assert [task.task.policy.queue for task in (*named, own)] == ["mail", "shop", "slow"]
    monkeypatch.setattr(app, "tasks", {})
    with pytest.raises(outlive.ConfigError, match=r"gives shop.\* only a queue: name its other options"):
        route({"shop.*": {"queue": "mail", "priority": "9"}})
