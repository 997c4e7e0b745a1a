"""Batches."""

import time

import pytest

from outlive import BatchCounts
from tests import faults
from tests.driving.batches import TARGET, callbacks, calls
from tests.guarantees.throughput import kept, rounds, seconds
from tests.processes.batched import app, spread, step
from tests.waiting import eventually

SUCCEEDED = "select count(*) from outlive.attempts where state = 'succeeded'"
EARLY = """
select count(*) from outlive.callbacks c join outlive.jobs j on j.id = c.job
where j.created_at < (select max(a.ended_at) from outlive.attempts a join outlive.jobs b on b.id = a.job_id
                      where b.batch = c.batch)
"""


@pytest.mark.long
def test_each_callback_is_enqueued_once_whichever_workers_are_killed(start, queue):
    with app.batch("tree", **callbacks()) as batch:
        app.enqueue_stream(step.using(batch=batch).job(n) for n in range(300))
        app.enqueue_stream(spread.using(batch=batch).job(2) for _ in range(20))
    for ended in (80, 240):
        worker, other = start(target=TARGET), start(target=TARGET)
        eventually(lambda: queue.value(SUCCEEDED) >= ended, within_s=40, what="some have ended")  # noqa: B023
        worker.kill()
        other.kill_with_zygote()
    start(target=TARGET)
    assert batch.wait(timeout=60) == BatchCounts(440, 440, 0, 0, 0, 0, True)
    eventually(lambda: calls(queue) == [("done", 1, 1), ("success", 1, 1)], within_s=30, what="the callbacks run")
    assert queue.value(EARLY) == 0


@pytest.mark.long
def test_a_warm_worker_keeps_its_throughput_in_a_batch(start, queue):
    jobs, least = 20_000, 1 / 1.15
    start()
    alone: list[float] = []
    inside: list[float] = []
    for _ in rounds(alone, inside, least):
        alone.append(seconds(queue, [faults.warm.job(n) for n in range(jobs)]))
        with faults.app.batch("warm") as batch:
            inside.append(seconds(queue, [faults.warm.using(batch=batch).job(n) for n in range(jobs)]))
        assert batch.counts() == BatchCounts(jobs, jobs, 0, 0, 0, 0, True)
    assert kept(alone, inside) >= least


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_million_jobs_are_enqueued_drained_and_called_back(start, queue):
    million = 1_000_000
    callback = faults.add.job(1)
    began = time.monotonic()
    with faults.app.batch("million", on_success=callback) as batch:
        faults.app.enqueue_stream(faults.warm.using(batch=batch).job(n) for n in range(million))
        enqueued = time.monotonic()
    closed = time.monotonic()
    start(slots=2)
    assert batch.wait(timeout=1500) == BatchCounts(million, million, 0, 0, 0, 0, True)
    drained = time.monotonic()
    assert faults.app.get_job(callback.request.id).result(timeout=30) == 1
    print(
        f"{million / (enqueued - began):,.0f} enqueued per s, closed in {closed - enqueued:.2f} s, "
        f"{million / (drained - closed):,.0f} drained per s"
    )
