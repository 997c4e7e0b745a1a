"""Async jobs that hang: their attempts say in which of their coroutines they were when they were stopped."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlive
from outlive import State, config
from outlive.child import awaiting
from outlive.errors import JobFailed
from outlive.states import Outcome
from tests.driving.commands import Cli
from tests.driving.jobs import attempts, finished
from tests.driving.making import Queue
from tests.processes import hanging
from tests.waiting import eventually

TARGET = "tests.processes.hanging:app"
CHAIN = ["_wait_for_answer", "_pages", "_session", "__aenter__", "_fetch"]
"""The innermost frames of a job that hangs in an async generator, in a context of contextlib."""


@pytest.fixture(autouse=True)
def configured(database_url: str) -> Iterator[None]:
    hanging.app.configure(config.load(flags={"database_url": database_url}))
    yield
    hanging.app.configure(None)


def stack_of(queue: Queue, job: outlive.Job[Any]) -> str:
    return attempts(queue, job)[-1].stack or ""


def names(stack: str) -> list[str]:
    """The functions of a stack, without what asyncio itself does."""
    frames = re.findall(r'^ *File "(.*)", line \d+ in (\w+)$', stack, re.MULTILINE)
    return [name for file, name in frames if "/asyncio/" not in file and not file.endswith("selectors.py")]


def each(*tasks: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("task", tasks, ids=[task.function.__name__ for task in tasks])


@each(hanging.fresh, hanging.shared, hanging.plain)
def test_a_job_that_times_out_while_it_awaits_says_where(start, queue, tmp_path, database_url, task):
    job = task.using(timeout="2s").enqueue(str(tmp_path / "begun"))
    worker = start(target=TARGET)
    with pytest.raises(JobFailed) as failed:
        job.result(timeout=30)
    assert failed.value.attempt
    stack = failed.value.attempt.stack or ""
    assert names(stack) == [*CHAIN, task.function.__name__]
    assert "await asyncio.Event().wait()" in stack, "the line of code"
    shown = Cli(database_url)("show", job.id).out
    assert shown.index("in _wait_for_answer") < shown.index("in _fetch") < shown.index(f"in {task.function.__name__}")
    worker.says("in _wait_for_answer")


@each(hanging.warm, hanging.executed, hanging.shared)
def test_a_job_that_is_cancelled_while_it_awaits_says_where(start, queue, tmp_path, task):
    start(target=TARGET)
    job = task.enqueue(str(tmp_path / "begun"))
    eventually((tmp_path / "begun").exists, within_s=20)
    assert job.cancel()
    assert finished(job) is State.CANCELLED
    assert names(stack_of(queue, job)) == [*CHAIN, task.function.__name__]


@each(hanging.warm, hanging.shared)
def test_a_job_that_stalls_while_it_awaits_says_where(start, queue, tmp_path, task):
    job = task.using(stall="2s").enqueue(str(tmp_path / "begun"))
    start(target=TARGET)
    assert finished(job) is State.FAILED
    assert "Stalled" in str(attempts(queue, job)[-1].error)
    assert names(stack_of(queue, job)) == [*CHAIN, task.function.__name__]


def test_each_task_of_asyncio_that_a_job_has_begun_is_in_its_stack_and_none_of_its_neighbours(start, queue, tmp_path):
    neighbour = hanging.shared.enqueue(str(tmp_path / "neighbour"))
    job = hanging.many.using(timeout="2s").enqueue(str(tmp_path / "begun"))
    start(target=TARGET)
    assert finished(job) is State.FAILED
    assert names(stack_of(queue, job)) == ["many", *CHAIN, "_wait_for_answer"]
    assert neighbour.status() is State.RUNNING


def test_a_shared_job_that_ignores_its_timeout_says_where_it_was_when_its_process_is_killed(start, queue, tmp_path):
    job = hanging.deaf.using(timeout="2s").enqueue(str(tmp_path / "begun"))
    start(target=TARGET)
    assert finished(job) is State.FAILED
    (only,) = attempts(queue, job)
    assert (tmp_path / "begun.ignored").exists()
    assert (only.outcome, only.signal) == (Outcome.TIMED_OUT, "SIGKILL")
    assert names(only.stack or "") == [*CHAIN, "deaf"]


def test_a_shared_job_that_blocks_its_loop_beyond_its_timeout_says_where(start, queue, tmp_path):
    job = hanging.blocked.using(timeout="2s").enqueue(str(tmp_path / "begun"))
    start(target=TARGET, block_s="60")
    assert finished(job) is State.FAILED
    (only,) = attempts(queue, job)
    assert (only.outcome, only.signal) == (Outcome.TIMED_OUT, "SIGKILL")
    assert "blocked" in names(only.stack or "")


def test_a_task_of_asyncio_that_raises_when_it_is_looked_at_harms_neither_its_job_nor_the_stack(start, queue, tmp_path):
    begun: Path = tmp_path / "begun"
    job = hanging.hostile.using(timeout="2s").enqueue(str(begun))
    start(target=TARGET)
    assert finished(job) is State.FAILED
    (only,) = attempts(queue, job)
    assert (only.outcome, only.signal) == (Outcome.TIMED_OUT, None)
    assert names(only.stack or "") == [*CHAIN, "hostile"]
    assert Path(f"{begun}.cleaned").exists()


def test_of_many_tasks_of_asyncio_the_first_are_shown_and_only_their_code_is_read(monkeypatch):
    read: list[int] = []

    def getline(file: str, line: int) -> str:
        read.append(line)
        return ""

    monkeypatch.setattr(awaiting, "getline", getline)

    async def begin() -> str:
        tasks = [asyncio.create_task(asyncio.Event().wait(), name=f"Task-{n}") for n in range(1, 31)]
        await asyncio.wait(tasks, timeout=0)
        shown = awaiting.stacks_of(tasks)
        for one in tasks:
            one.cancel()
        return shown

    shown = asyncio.run(begin())
    assert re.findall(r"Asyncio task 'Task-(\d+)'", shown) == [str(n) for n in range(1, 11)]
    assert "… and 20 more tasks of asyncio" in shown
    assert len(read) == 10
