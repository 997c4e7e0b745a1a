"""Gathering the results of many jobs: in order, all at once, and no longer than necessary."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

import outlive
from outlive.client import results, waiting
from outlive.model import Ended
from outlive.states import Outcome
from tests.client.example import add
from tests.driving.making import Queue, lane
from tests.waiting import eventually

Gather = Callable[..., list[Any]]
Jobs = list[outlive.Job[int]]


def agather(jobs: Jobs, *args: Any, **options: Any) -> list[Any]:
    async def use() -> list[Any]:
        try:
            found: list[Any] = await outlive.agather(jobs, *args, **options)
            return found
        finally:
            if jobs:
                await jobs[0]._app.runner.connections.aclose()

    return asyncio.run(use())


@pytest.fixture(params=[outlive.gather, agather], ids=["sync", "async"])
def gather(request: pytest.FixtureRequest) -> Gather:
    """Both twins."""
    found: Gather = request.param
    return found


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def ended(queue: Queue, job: outlive.Job[int], value: int) -> None:
    queue.run_job(job.id, Outcome.SUCCEEDED, result=str(value).encode())


def failed(queue: Queue, job: outlive.Job[int]) -> None:
    queue.run_job(job.id, Outcome.FAILED, error="ValueError: no", final=True)


def start(threads: ThreadPoolExecutor, queue: Queue, gather: Gather, *args: Any) -> Future[list[Any]]:
    found = threads.submit(gather, *args)
    eventually(lambda: queue.count("awaited") > 0, what="the jobs are awaited")
    return found


def test_results_come_in_the_order_of_the_jobs(app, queue, gather, threads, monkeypatch):
    for pause in ("FIRST_LOOK_S", "LAST_LOOK_S"):
        monkeypatch.setattr(waiting, pause, 600.0)
    jobs = [add.enqueue(n) for n in range(5)]
    ended(queue, jobs[2], 2)
    found = start(threads, queue, gather, [*jobs, jobs[0]], 20)
    for n in (4, 0, 3, 1):
        ended(queue, jobs[n], n)
    assert found.result(20) == [0, 1, 2, 3, 4, 0]
    assert queue.count("awaited") == 0


def test_nothing_is_gathered_from_nothing(gather):
    assert gather([]) == []


def test_the_first_failure_is_raised_while_others_go_on(app, queue, gather, threads):
    jobs = [add.enqueue(n) for n in range(3)]
    found = start(threads, queue, gather, jobs, 20)
    failed(queue, jobs[1])
    with pytest.raises(outlive.JobFailed, match=f"job {jobs[1].id} is failed: ValueError: no"):
        found.result(20)
    assert jobs[0].status() is outlive.State.PENDING


def test_errors_can_be_returned_among_the_results(app, queue, gather):
    jobs = [add.enqueue(n) for n in range(2)]
    ended(queue, jobs[0], 0)
    failed(queue, jobs[1])
    fine, error, lost = gather([*jobs, app.get_job(uuid4())], return_exceptions=True)
    assert fine == 0
    assert (type(error), error.job_id, type(lost)) == (outlive.JobFailed, jobs[1].id, outlive.JobNotFound)


def test_a_timeout_names_the_jobs_that_are_not_finished(app, queue, gather, monkeypatch):
    monkeypatch.setattr(results, "LOOK_S", 30.0)  # On a starved machine a look may take longer than half a second.
    jobs = [add.enqueue(n) for n in range(9)]
    ended(queue, jobs[0], 0)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as raised:
        gather(jobs, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    named = ", ".join(str(job.id) for job in jobs[1:6])
    why = f"; no active worker has the task or serves the queue of: {add.name}"
    assert str(raised.value) == f"8 of 9 jobs did not finish within 0.3 s: {named} and 3 more{why}"
    queue.register_worker()
    with pytest.raises(TimeoutError, match=f"1 of 2 jobs did not finish within 0 s: {jobs[1].id}; pending$"):
        gather(jobs[:2], timeout=0)


def test_jobs_of_two_apps_are_not_gathered_together(app, gather):
    other = outlive.App("postgresql:///other")
    with pytest.raises(outlive.ConfigError, match="jobs are of different apps"):
        gather([add.enqueue(1), other.get_job(uuid4())])


def test_thousands_of_jobs_are_gathered_while_they_end(app, queue, gather, threads):
    jobs = app.enqueue_many(add.job(n) for n in range(3000))
    found = start(threads, queue, gather, jobs, 100)
    number = {job.id: n for n, job in enumerate(jobs)}
    while claimed := queue.claim([lane(add.name)]):
        assert queue.end(*(Ended(one.token, result=str(number[one.id]).encode()) for one in claimed)) == []
    assert found.result(60) == list(range(3000))
