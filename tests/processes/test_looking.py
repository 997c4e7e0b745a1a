"""A job knows its task, queue and arguments, and any program sees what a job and a worker are."""

import asyncio
import re
from datetime import date
from pathlib import Path

import pytest

import outlive
from outlive import State
from tests.driving.jobs import finished
from tests.processes import looking
from tests.waiting import eventually

TARGET = "tests.processes.looking:app"
DAY = date(2026, 11, 19)


@pytest.mark.parametrize("task", [looking.say, looking.say_in_a_new_interpreter, looking.say_beside_others])
@pytest.mark.parametrize("length", [5, 300_000])
def test_a_job_knows_its_task_its_queue_and_its_arguments(start, task, length):
    start(target=TARGET)
    said = task.enqueue("hello".ljust(length), when=DAY).result(timeout=30)
    assert said == [task.name, "letters", {"text": "hello", "when": "2026-11-19"}, length]


def test_a_job_sees_all_arguments_of_many_jobs_and_its_worker_has_a_few_of_them_at_a_time(start):
    worker = start(target=TARGET, queues="default")
    sizes = [1_000_000 if n % 8 else 5 for n in range(80)]
    for size in sizes:
        looking.say.enqueue("x" * size, when=DAY)
    assert looking.survey.enqueue("letters").result(timeout=40) == sizes[::-1]
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{worker.pid}/status").read_text())
    assert int(peak) < 150_000


def test_a_job_that_follows_a_failure_sees_what_has_failed(start, queue):
    start(target=TARGET, name="web-7")
    job = looking.fail.enqueue(7, DAY)
    assert finished(job) is State.FAILED
    (teller,) = eventually(lambda: looking.app.jobs(task=looking.tell.name, state="succeeded"), within_s=20)
    error = "ValueError: no price"
    told = ["tests.processes.looking.fail", {"order": 7, "when": "2026-11-19"}, "failed", 1, "web-7", error, error]
    assert looking.app.get_job(teller.id).result() == [*told, [True]]
    info = job.info()
    assert info == asyncio.run(job.ainfo())
    assert info.started_at is not None
    assert info.ended_at is not None
    assert info.created_at <= info.ready_at <= info.started_at <= info.ended_at


def test_workers_are_listed_set_and_drained_from_python(start):
    worker = start(target=TARGET, name="web-7", slots=2, heartbeat_s="600")
    app, handle = looking.app, looking.app.worker("web-7")
    [found] = app.workers()
    assert found == asyncio.run(app.aworkers())[0]
    assert (found.name, found.state, found.slots, found.queues) == ("web-7", "active", 2, None)
    assert looking.say.name in (found.tasks or ())
    assert handle.set(slots=3, queues=["letters", "news"])
    worker.says("has 3 slots and serves the queues letters, news now", within_s=20)
    assert (app.workers()[0].slots, app.workers()[0].queues) == (3, ["letters", "news"])
    assert asyncio.run(handle.aset(queues=[]))
    worker.says("has 3 slots and serves all queues now", within_s=20)
    assert handle.drain()
    eventually(lambda: app.workers()[0].state == "stopped", within_s=20)
    assert not handle.drain()
    assert not handle.set(slots=1)
    with pytest.raises(outlive.ConfigError, match=r"worker.set needs slots=… or queues=…"):
        handle.set()
    with pytest.raises(outlive.ConfigError, match="slots is 0"):
        handle.set(slots=0)


def test_a_job_in_quarantine_has_the_worker_and_the_start_of_its_last_attempt(start):
    start(target=TARGET, name="web-7")
    job = looking.die.enqueue()
    assert finished(job) is State.QUARANTINED
    info = job.info()
    assert (info.worker, info.started_at is None, info.ended_at) == ("web-7", False, None)


def test_a_job_that_asks_for_what_only_programs_may_is_told_where_to_do_it(start):
    start(target=TARGET)
    with pytest.raises(outlive.JobFailed, match=r"a job can't do this \(list_workers\): .* do it in a program"):
        looking.count_workers.enqueue().result(timeout=30)


def test_a_job_may_do_what_handles_do(start, queue):
    failed = looking.fail.enqueue(7, date(2026, 1, 2))
    start(target=TARGET, name="web-7")
    assert finished(failed) is State.FAILED
    every_s, paused, fired, letters_paused = looking.operate.enqueue(failed.id).result(timeout=30)
    assert (every_s, paused, letters_paused) == (7200, True, True)
    assert looking.app.get_job(str(fired)).result(timeout=30) == 7
    assert finished(failed) is State.FAILED
    assert failed.info().attempt == 2
    limits = queue.execute("select set_rate_limit_per_minute, enabled from outlive.sources where name = 'shop'")
    assert limits.fetchone() == (60, True)
    assert not looking.app.queue("letters").info().paused
    eventually(lambda: [one.slots for one in looking.app.workers()] == [3], within_s=20)
    assert looking.operate_later.enqueue().result(timeout=30) == ["customer-7"]
    assert looking.app.queue("letters").info().paused
