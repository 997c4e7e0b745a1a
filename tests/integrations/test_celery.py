"""outlive.celery: code that was written for Celery runs on outlive."""

import asyncio
import importlib
import os
import socket
import subprocess
import sys
import threading
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import UNSET

import outlive
from outlive import foreign_options
from outlive.celery import (
    AsyncResult,
    GroupResult,
    Request,
    SharedTask,
    app,
    chain,
    chord,
    group,
    route,
    shared_task,
    uuid,
)
from outlive.states import State


@pytest.fixture
def outlive_apps():
    return [app]  # Schedules of other apps that this process has would fire for each second of an hour.


@shared_task
def add(a: int, b: int) -> int:
    return a + b


@shared_task(name="total", queue="slow", time_limit=60)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task(ignore_result=True)
def thrown_away(a: int) -> object:
    return {(a, "no JSON")}


@shared_task(ignore_result=True)
async def awaited(a: int) -> object:
    return {(a, "no JSON")}


@shared_task
def plain(a: int):  # type: ignore[no-untyped-def]
    return {a: (UUID(int=a), date(2026, 1, 2), {Decimal("1.50")})}


@shared_task
def calling(a: int) -> list[str]:
    return [type(one).__name__ for one in (plain(a), plain(a)[a], thrown_away(a))]


@shared_task
def opaque(a: int):  # type: ignore[no-untyped-def]
    return {"a": b"bytes"}


@shared_task(bind=True, max_retries=1, default_retry_delay=0)
def flaky(self: Request, text: str) -> str:
    """Succeeds at its second try."""
    if self.request.retries == 0:
        raise self.retry(exc=ValueError("not yet"), countdown=0)
    return f"{text} {self.request.id}"


@shared_task(autoretry_for=(ConnectionError,), retry_backoff=True, acks_late=False)
def picky(kind: str) -> None:
    raise ConnectionError if kind == "connection" else ValueError(kind)


@shared_task(bind=True, autoretry_for=(ConnectionError,), default_retry_delay=100)
def waits(self: Request, countdown: float | None = None) -> None:
    raise self.retry(countdown=countdown)


@shared_task(bind=True, max_retries=1, default_retry_delay=0)
def hopeless(self: Request, named: bool = False) -> None:
    try:
        print(os.environ["NONE"])
    except KeyError as error:
        raise self.retry(exc=ValueError("no x") if named else None) from error


@shared_task(bind=True, max_retries=0)
def gives_up(self: Request) -> None:
    self.retry()


@shared_task(bind=True, max_retries=1, default_retry_delay=0)
def rested(self: Request) -> int:
    """Each wait makes an attempt, which is no retry."""
    outlive.current().sleep("1s")
    return self.request.retries


@shared_task(bind=True)
def described(self: Request, *args: int, **kwargs: str) -> list[Any]:
    return [self.request.args, self.request.kwargs, self.request.hostname]


@SharedTask
@app.task(priority=0)
def urgent(number: int) -> int:
    return number


@shared_task
def told(job: UUID, error: str) -> str:
    return str(job)


@shared_task(bind=True, priority=1, retry_kwargs={"max_retries": 7, "countdown": 5}, retry_jitter=True)
def whoami(self: Request, number: int) -> tuple[str | None, int, int | None, int]:
    assert self.name == self.request.task in ("own", f"{__name__}.whoami")
    return self.request.id, self.request.retries, self.max_retries, number


def test_a_task_is_called_delayed_and_sent_with_options(outlive_jobs):
    id = uuid()
    sent = [add.delay(1, b=2), add.apply_async((3, 4), queue="mail", task_id=id)]
    assert add(1, 2) == 3
    outlive_jobs.run()
    assert [one.get(timeout=5) for one in sent] == [3, 7]
    assert (sent[1].id, add.name) == (id, add.task.name)
    assert sent[0].id < add.delay(1, 2).id < uuid()  # Each is newer than the one before.


def test_a_result_that_is_ignored_may_be_no_json(outlive_jobs):
    sent = [thrown_away.delay(1), awaited.delay(a=2)]
    outlive_jobs.run()
    assert [one.get(timeout=5) for one in sent] == [None, None]
    with pytest.raises(outlive.BadArguments):
        thrown_away.delay("a", "b")


def test_a_result_without_an_annotation_is_stored_as_the_plain_json_of_celery(outlive_jobs):
    sent, refused = plain.delay(7), opaque.delay(7)
    outlive_jobs.run()
    assert sent.get(timeout=5) == {"7": [str(UUID(int=7)), "2026-01-02", ["1.50"]]}
    with pytest.raises(outlive.JobFailed, match="bytes"):
        refused.get(timeout=5)


def test_a_call_as_a_function_returns_what_the_function_does(outlive_jobs):
    assert plain(7) == plain.run(7) == {7: (UUID(int=7), date(2026, 1, 2), {Decimal("1.50")})}
    assert (thrown_away(1), asyncio.run(awaited(a=2))) == ({(1, "no JSON")}, {(2, "no JSON")})
    sent = calling.delay(7)
    outlive_jobs.run()
    assert sent.get(timeout=5) == ["dict", "tuple", "set"]


def test_a_test_of_django_without_outlives_app_enqueues_nowhere(database_url):
    settings = "from django.conf import settings; settings.configure(); import django; django.setup()"
    tested = "from django.test.utils import setup_test_environment; setup_test_environment()"
    task = "from outlive.celery import shared_task; add = shared_task(name='add')(lambda a: a)"
    words = [sys.executable, "-c", f"{settings}; {tested}; {task}; add.delay(1)"]
    ran = subprocess.run(words, env=os.environ | {"OUTLIVE_DATABASE_URL": database_url}, capture_output=True, text=True)
    assert "add outlive.django to INSTALLED_APPS" in ran.stderr.splitlines()[-1]


def test_results_go_along_a_chain_and_a_group_has_them_all(outlive_jobs):
    last = chain(add.s(1, 2), add.s(10), add.si(5, 5), add.s(100))()
    piped = (add.s(1, 2) | add.s(10)).delay()
    results = group(add.s(n, n) for n in range(3)).apply_async()
    assert not results.ready()
    outlive_jobs.run()
    assert (last.get(5), piped.get(5), results.join(5), [one.get(5) for one in results]) == (
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
    with pytest.raises(outlive.ConfigError, match="put a task after its group"):
        group(add.s(1, 1) | group(add.s(1)), add.s(1, 1))()
    with pytest.raises(outlive.ConfigError, match="at least one signature"):
        chain()()


def test_a_failed_step_ends_what_comes_after_it_in_a_chain_and_a_chord(outlive_jobs):
    chained = chain(picky.s("value"), add.si(1, 2), add.s(3))()
    summed = chord([add.s(1, 1), picky.s("value")])(total.s())
    outlive_jobs.run()
    for result in (chained, summed):
        assert (result.ready(), result.state) == (True, "REVOKED")
        with pytest.raises(outlive.JobFailed, match=r"is failed: ValueError: value;"):
            result.get(timeout=5)


def test_a_step_after_one_that_was_retried_since_says_that_it_was_cancelled(outlive_jobs):
    last = (picky.s("value") | add.si(1, 2)).delay()
    outlive_jobs.run()
    [first] = outlive_jobs.enqueued(picky.task)
    assert app.get_job(first.id).retry()
    with pytest.raises(outlive.JobFailed, match=rf"is cancelled: cancelled, because job {first.id} ended without"):
        last.get(timeout=5)


def test_a_result_has_the_states_of_celery(outlive_jobs):
    done, stopped, failed = add.delay(1, 2), add.delay(3, 4), picky.delay("value")
    assert (done.state, done.status, done.ready()) == ("PENDING", "PENDING", False)
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


def test_a_retry_of_a_bound_task_comes_after_exactly_the_delay_that_it_says(outlive_jobs):
    for countdown in (None, None, None, 100, 100):
        waits.delay(countdown)
    assert len(outlive_jobs.run()) == 5
    outlive_jobs.advance("95s")
    assert outlive_jobs.run() == []
    outlive_jobs.advance("5s")
    assert len(outlive_jobs.run()) == 5


def test_a_bound_task_without_a_retry_left_fails_with_what_led_to_it(outlive_jobs):
    results = [hopeless.delay(), hopeless.delay(named=True), gives_up.delay()]
    first = outlive_jobs.run()
    assert [type(one.exception.__cause__) for one in first[:2]] == [KeyError, ValueError]
    outlive_jobs.run()
    errors, stacks = [], []
    for result in results:
        with pytest.raises(outlive.JobFailed) as failed:
            result.get(5)
        assert failed.value.attempt is not None
        errors.append(failed.value.attempt.error)
        stacks.append(failed.value.attempt.stack or "")
    assert errors == ["KeyError: 'NONE'", "ValueError: no x", "OutliveError: no try is left: max_retries is 0"]
    assert all('print(os.environ["NONE"])' in stack for stack in stacks[:2])


def test_the_retries_of_a_bound_task_count_no_wait_and_end_with_its_max_attempts(outlive_jobs, monkeypatch):
    waited = rested.delay()
    ran = outlive_jobs.run(delayed=True)
    assert (ran[-1].attempt, waited.get(5)) == (2, 0)
    monkeypatch.setattr(app, "tasks", {})
    own = shared_task(bind=True, max_retries=3, max_attempts=9, name="own")(whoami.task.function.__wrapped__)
    assert own(3)[2] == 8


def test_a_bound_task_sees_its_arguments_and_its_host(outlive_jobs):
    result = described.delay(1, 2, colour="red")
    outlive_jobs.run()
    assert result.get(5) == [[1, 2], {"colour": "red"}, socket.gethostname()]


def test_a_task_of_outlive_gets_the_calls_of_celery(outlive_jobs):
    last = (add.s(1, 2) | urgent.s()).delay()
    urgent.delay(4)
    outlive_jobs.run()
    assert last.get(5) == 3
    assert {job.priority for job in outlive_jobs.enqueued(urgent.task)} == {0}


def test_a_task_and_a_call_have_a_priority_of_outlive(outlive_jobs):
    (whoami.s(1) | add.si(1, 2).set(priority=9)).delay()
    add.apply_async((1, 2), priority=3)
    outlive_jobs.run()
    [bound], added = outlive_jobs.enqueued(whoami.task), outlive_jobs.enqueued(add.task)
    assert (bound.priority, sorted(job.priority for job in added)) == (1, [3, 9])


def test_a_job_of_a_canvas_tells_another_task_that_it_failed(outlive_jobs):
    last = (add.si(1, 2) | picky.si("value").set(on_failed=told) | add.si(3, 4))()
    outlive_jobs.run()
    [failed] = outlive_jobs.enqueued(picky.task)
    assert [AsyncResult(str(job.id)).get(5) for job in outlive_jobs.enqueued(told.task)] == [str(failed.id)]
    assert last.state == "REVOKED"


def test_a_result_of_what_is_no_id_is_refused_at_once():
    with pytest.raises(outlive.ConfigError, match=r"id is 'x': it must be a UUID"):
        AsyncResult("x")


def test_a_canvas_takes_no_options_and_says_what_to_write():
    with pytest.raises(outlive.ConfigError, match=r"takes no countdown: write \.set\(countdown=…\) on its signatures"):
        chain(add.s(1, 2), add.s(3)).apply_async(countdown=5)
    with pytest.raises(outlive.ConfigError, match=r"takes no link_error: write canvas\.apply_async\(on_f"):
        chain(add.s(1, 2), add.s(3)).apply_async(link_error=told.s())


def test_a_bound_task_can_be_called_as_a_function():
    assert whoami(3) == (None, 0, 7, 3)


def test_only_the_exceptions_of_autoretry_for_are_retried(outlive_jobs):
    retried, failed = picky.delay("connection"), picky.delay("value")
    outlive_jobs.run()
    assert (retried.job.status(), failed.job.status()) == (State.RETRYABLE, State.FAILED)


@shared_task(time_limit=0.2)
def endless() -> None:
    threading.Event().wait()


@shared_task(time_limit=0.2, share=2)
async def endless_beside_others() -> None:
    await asyncio.Event().wait()


@shared_task(stall=0.2)
def stalled() -> None:
    threading.Event().wait()


@shared_task(time_limit=0.2, autoretry_for=(TimeoutError,))
def patient() -> None:
    threading.Event().wait()


@shared_task(acks_late=True)
def aborts() -> None:
    os.abort()


@shared_task(acks_late=True, reject_on_worker_lost=True)
def aborts_again() -> None:
    os.abort()


def test_a_time_out_or_a_death_of_the_process_is_retried_only_where_the_task_says_so(outlive_jobs):
    tasks = (endless, endless_beside_others, stalled, patient, aborts, aborts_again)
    results = [task.delay() for task in tasks]
    assert len(outlive_jobs.run(in_processes=True)) == len(tasks)
    assert [one.job.status() for one in results] == [
        *[State.FAILED] * 3,
        State.RETRYABLE,
        State.QUARANTINED,
        State.RETRYABLE,
    ]


@pytest.mark.parametrize(
    ("options", "becomes"),
    [
        ({}, ("fail", 1)),
        ({"acks_late": False, "reject_on_worker_lost": True}, ("fail", 1)),
        ({"acks_late": True}, ("retry", 1)),
        ({"acks_late": True, "reject_on_worker_lost": True}, ("retry", UNSET)),
        ({"on_worker_death": "retry", "max_crashes": 2}, ("retry", 2)),
    ],
)
def test_a_death_is_repeated_as_acks_late_says(monkeypatch, options, becomes):
    monkeypatch.setattr(app, "tasks", {})
    policy = shared_task(**options)(add.task.function).task.policy
    assert (policy.on_worker_death, policy.max_crashes) == becomes


def test_options_become_those_of_outlive():
    policy = app.tasks["total"].policy
    assert (policy.queue, policy.timeout_s, policy.max_attempts, policy.backoff_s) == ("slow", 60, 4, (180.0,))
    assert picky.task.policy.on_worker_death == "fail"
    assert (whoami.task.policy.max_attempts, whoami.task.policy.backoff_s) == (8, (5.0,))


def test_an_exponential_backoff_ends_at_the_maximum_of_celery(monkeypatch):
    monkeypatch.setattr(app, "tasks", {})
    plain = shared_task(name="plain", retry_backoff=150)(add.task.function).task.policy
    own = shared_task(name="own", retry_backoff=True, retry_backoff_max=3)(add.task.function).task.policy
    assert (plain.backoff_s, own.backoff_s) == ((150.0, 300.0, 600.0), (1.0, 2.0, 3.0))


def test_a_result_of_a_failed_task_raises_the_same_in_eager_tests_as_with_a_worker(outlive_jobs):
    with outlive_jobs.eager(raising=False), pytest.raises(outlive.JobFailed, match="is failed: ValueError: value;"):
        picky.delay("value").get(timeout=5)
    result = picky.delay("value")
    outlive_jobs.run(in_processes=True)
    with pytest.raises(outlive.JobFailed, match="is failed: ValueError: value;"):
        result.get(timeout=5)


def test_options_of_outlive_count_more_than_those_of_celery():
    task = shared_task(name="own", retry_backoff=2, backoff=[2, 30], max_attempts=9)(add.task.function).task
    assert (task.policy.backoff_s, task.policy.max_attempts) == ((2.0, 30.0), 9)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("rate_limit", r"rate_limit; did you mean source"),
        ("retry_on_worker_lost", r"does not take retry_on_worker_lost: write max_crashes=…"),
        ("dont_autoretry_for", r"does not take dont_autoretry_for: catch these exceptions"),
    ],
)
def test_an_option_of_a_task_that_means_something_else_is_refused_with_what_to_write(option, sentence):
    with pytest.raises(outlive.ConfigError, match=sentence):
        shared_task(**{option: "3"})(total.task.function)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("dedupe_key", r"write add\.task\.using\(dedupe_key=…\)\.enqueue\(…\)$"),
        ("link_error", r"write on_failed=other, where other is a task that takes the id"),
        ("soft_time_limit", r"give it to shared_task$"),
        ("link", r"write one \| other"),
        ("retry", r"leave it out: it is for a broker$"),
        (
            "ignore_result",
            r"leave it out: a job without a return value stores nothing; keep_finished=… limits the rest$",
        ),
        ("shadow", r"leave it out: a job has the name of its task$"),
        ("connection", r"write add\.task\.using\(connection=…\)\.enqueue\(…\)$"),
        ("headers", r"write `with outlive\.baggage\(request_id=…\):` around the call; a trace"),
        ("throws", r"leave it out, and raise outlive\.Cancel"),
        ("retry_backoff", r"give it to the task, or write add\.task\.using\(…\)"),
    ],
)
def test_an_option_of_a_call_that_means_something_else_is_refused_with_what_to_write(option, sentence):
    for call in (add.s(1, 2).set, add.s(1, 2).clone, partial(add.apply_async, (1, 2))):
        with pytest.raises(outlive.ConfigError, match=f"apply_async does not take {option}: {sentence}"):
            call(**{option: True})


def test_an_id_that_is_no_uuid_is_refused():
    with pytest.raises(outlive.ConfigError, match=r"task_id is 'order-7', and an id is a UUID: leave it out"):
        add.apply_async((1, 2), task_id="order-7")


@pytest.mark.parametrize("result", [AsyncResult(str(uuid4())), GroupResult([])])
def test_a_result_takes_only_a_timeout_and_says_what_to_write(result):
    with pytest.raises(
        outlive.ConfigError, match=r"leave out propagate; in place of propagate=False, catch outlive\.J"
    ):
        result.get(timeout=1, propagate=False)
    with pytest.raises(outlive.ConfigError, match=r"get takes only a timeout: leave out interval$"):
        result.get(interval=0.1)


def test_a_retry_with_other_options_is_refused():
    with pytest.raises(outlive.ConfigError, match="max_retries: give queue to shared_task"):
        Request(3).retry(countdown=5, queue="mail")
    with pytest.raises(outlive.ConfigError, match="max_retries=9, more than its task: give that to shared_task"):
        Request(3).retry(countdown=5, max_retries=9)
    with pytest.raises(ValueError, match="last"):
        Request(3).retry(ValueError("last"), max_retries=0)
    with pytest.raises(outlive.Retry):
        Request(3).retry(max_retries=2)


SHIM = {
    "a shared task": add,
    "self or self.request of a task": Request(3),
    "a result": AsyncResult(str(uuid4())),
    "the result of a group": GroupResult([]),
    "a signature": add.s(1, 2),
    "a canvas": add.s(1, 2) | add.s(3),
}


@pytest.mark.parametrize(("what", "name"), [(what, one) for what in SHIM for one in foreign_options.SHIM[what]])
def test_what_an_object_lacks_is_said_with_what_to_write(what, name):
    with pytest.raises(AttributeError, match=rf"^{what} has no {name}: (write|leave) "):
        getattr(SHIM[what], name)
    assert not hasattr(SHIM[what], "dealy")


@pytest.mark.parametrize("name", foreign_options.CELERY_NAMES)
def test_an_import_that_is_not_there_says_what_to_write(name):
    with pytest.raises(ImportError, match=rf"^outlive\.celery has no {name}: \w+ "):
        exec(f"from outlive.celery import {name}")
    assert not hasattr(importlib.import_module("outlive.celery"), "Clery")


def test_a_shared_task_has_a_schedule_and_is_told_of_failed_jobs(outlive_jobs, monkeypatch):
    monkeypatch.setattr(app, "schedules", {})
    monkeypatch.setattr(app, "follower", None)
    assert (app.schedule(every="1h", args=[1, 2])(add), app.on_failed(told)) == (add, told)
    outlive_jobs.advance("1h")
    failed = picky.delay("value")
    own = picky.task.using(on_failed=told).enqueue("value")
    outlive_jobs.run()
    assert len(outlive_jobs.enqueued(add.task)) == 1
    assert {AsyncResult(str(job.id)).get(5) for job in outlive_jobs.enqueued(told.task)} >= {str(own.id)}
    assert failed.failed()


def test_tasks_get_their_queues_by_patterns_that_are_given_before_them(monkeypatch):
    with pytest.raises(outlive.ConfigError, match=r"after the task \S+\.add was declared: call it above"):
        route({"*": "mail"})
    with pytest.raises(
        outlive.ConfigError, match=r"what route takes is \[\('web\.\*', 'q'\)\]: it must be a dict of patt"
    ):
        route([("web.*", "q")])  # type: ignore[arg-type]
    monkeypatch.setattr(app, "tasks", {})
    monkeypatch.setattr(app, "queue_of", {})
    route({"shop.mail.*": {"queue": "mail"}, "shop.*": "shop"})
    named = [shared_task(name=f"shop.{name}")(add.task.function) for name in ("mail.send", "pay")]
    own = shared_task(name="shop.mail.bulk", queue="slow")(add.task.function)
    assert [task.task.policy.queue for task in (*named, own)] == ["mail", "shop", "slow"]
    monkeypatch.setattr(app, "tasks", {})
    with pytest.raises(outlive.ConfigError, match=r"route for shop.\* has the unknown option routing_key; leave it"):
        route({"shop.*": {"queue": "mail", "routing_key": "mail.send"}})
