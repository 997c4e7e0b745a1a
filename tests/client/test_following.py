"""Following a job: its status, its result, or the evidence of its failure, and cancelling it."""

import time
from collections.abc import Callable

import pytest

import outlive
from outlive import store
from outlive.client import results
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.client.example import add, fetch, in_a_loop
from tests.driving.making import WORKER


def test_a_job_is_pending_then_running_then_succeeded(app, queue):
    job = add.enqueue(1)
    assert job.status() is State.PENDING
    claimed = queue.claim_job(job.id)
    assert job.status() is State.RUNNING
    queue.end(Ended(claimed.token, result=b"3"))
    assert job.status() is State.SUCCEEDED
    assert in_a_loop(job.astatus(), job.aresult()) == [State.SUCCEEDED, 3]


@pytest.mark.parametrize(
    ("stored", "value"), [(b'{"url":"u","n":[1,null]}', {"url": "u", "n": [1, None]}), (None, None)]
)
def test_the_result_is_the_value_that_the_job_returned(app, queue, stored, value):
    job = fetch.enqueue("u")
    queue.run_job(job.id, Outcome.SUCCEEDED, result=stored)
    assert job.result(timeout=0) == value
    assert app.get_job(job.id).result() == value


@pytest.mark.parametrize(
    ("state", "outcome", "evidence", "said"),
    [
        (State.FAILED, Outcome.FAILED, {"error": "ValueError: no", "final": True, "stack": "line 1"}, "ValueError: no"),
        (State.CANCELLED, Outcome.CANCELLED, {}, "is cancelled: cancelled"),
        (State.QUARANTINED, Outcome.CRASHED, {"signal": "SIGSEGV", "error": "Killed by SIGSEGV"}, "Killed by SIGSEGV"),
    ],
)
def test_a_job_without_a_result_raises_with_its_last_attempt(app, queue, state, outcome, evidence, said):
    job = add.using(max_crashes=1).enqueue(1)
    queue.run_job(job.id, outcome, **evidence)
    with pytest.raises(outlive.JobFailed, match=said) as raised:
        job.result(timeout=0)
    with pytest.raises(outlive.JobFailed, match=f"outlive show {job.id}") as araised:
        in_a_loop(job.aresult(timeout=0))
    for error in (raised.value, araised.value):
        assert (error.job_id, error.state) == (job.id, state)
        assert error.attempt is not None
        assert (error.attempt.attempt, error.attempt.outcome) == (1, outcome)
        assert (error.attempt.signal, error.attempt.stack) == (evidence.get("signal"), evidence.get("stack"))


def test_a_job_that_will_be_tried_again_gives_no_result_yet(app, queue):
    job = add.enqueue(1)
    queue.run_job(job.id, Outcome.FAILED, error="once")
    assert job.status() is State.RETRYABLE
    queue.register_worker()
    with pytest.raises(TimeoutError, match=f"job {job.id} did not finish within 0 s; retryable: due in .+ s$"):
        job.result(timeout=0)


def test_waiting_ends_in_time(app, monkeypatch):
    monkeypatch.setattr(results, "LOOK_S", 30.0)  # On a starved machine a look may take longer than half a second.
    job = add.enqueue(1)
    start = time.monotonic()
    why = "no active worker has the task or serves the queue of: "
    with pytest.raises(TimeoutError, match=f"job {job.id} did not finish within 0.3 s; {why}{add.name}$"):
        job.result(timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 3
    with pytest.raises(TimeoutError):
        in_a_loop(job.aresult(timeout=0.05))


def test_a_cancelled_job_is_cancelled_once(app):
    first, second = add.enqueue(1), add.enqueue(2)
    assert first.cancel() is True
    assert first.cancel() is False
    assert in_a_loop(second.acancel(), second.acancel(), second.astatus()) == [True, False, State.CANCELLED]
    with pytest.raises(outlive.JobFailed, match="is cancelled"):
        first.result(timeout=0)


def test_a_job_is_retried_and_released_as_by_an_operator(app, queue):
    job = add.enqueue(1)
    assert (job.retry(), job.release()) == (False, False)
    queue.run_job(job.id, Outcome.FAILED, error="no", final=True)
    assert (job.retry(), job.status()) == (True, State.PENDING)
    queue.run(store.block([job.id], "look at it"))
    assert (job.release(), job.status()) == (True, State.PENDING)
    assert in_a_loop(job.aretry(), job.arelease(), job.acancel(), job.aretry()) == [False, False, True, True]
    with pytest.raises(outlive.JobNotFound):
        app.get_job(WORKER).retry()


def test_a_queue_is_paused_and_resumed(app, queue):
    mail = app.queue("mail")
    paused = "select name from outlive.queues where paused_at is not null"
    mail.pause()
    assert queue.values(paused) == ["mail"]
    assert (mail.resume(), mail.resume(), queue.values(paused)) == (True, False, [])
    assert in_a_loop(mail.apause(), mail.aresume(), mail.aresume()) == [None, True, False]
    with pytest.raises(outlive.ConfigError, match="the name of a queue is ''"):
        app.queue("")


def test_a_job_that_was_pruned_is_not_found(app, queue):
    job = add.enqueue(1)
    queue.run_job(job.id, Outcome.SUCCEEDED, result=b"1")
    assert queue.run(store.prune_jobs([job.id])) == 1
    asked: list[Callable[[], object]] = [job.status, job.result, job.cancel]
    for ask in asked:
        with pytest.raises(outlive.JobNotFound, match=f"there is no job {job.id}"):
            ask()
    for aask in (job.astatus, job.aresult, job.acancel):
        with pytest.raises(outlive.JobNotFound):
            in_a_loop(aask())


def test_an_id_may_be_text_but_not_any_text(app):
    job = add.enqueue(1)
    assert app.get_job(str(job.id)) == job
    with pytest.raises(outlive.ConfigError, match="id is 'seven': it must be a UUID"):
        app.get_job("seven")


def test_handles_on_the_same_job_are_equal_and_can_be_keys(app):
    job = add.enqueue(1)
    assert {job: 1}[app.get_job(job.id)] == 1
    assert repr(job) == f"Job(id={job.id!r})"
