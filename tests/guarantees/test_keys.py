"""Limits by key."""

import time
from pathlib import Path

from tests.guarantees.keyed import app, enter
from tests.store.acting import assert_sound
from tests.waiting import eventually

TARGET = "tests.guarantees.keyed:app"
KEYS = ("a", "b", "c")
SUCCEEDED = "select count(*) from outlive.attempts where state = 'succeeded'"
FAILED = "select count(*) from outlive.attempts where outcome = 'failed'"
RUNNING = "select count(*) from outlive.running"


def enqueue(folder: Path, key: str, jobs: int, *, hold_s: float, most: int = 2) -> None:
    keyed = enter.using(concurrency_key=key, concurrency=most)
    app.enqueue_many([keyed.job(str(folder), key, most, hold_s) for _ in range(jobs)])


def test_no_more_jobs_of_a_key_run_than_it_allows_on_all_workers_together(start, queue, tmp_path):
    for _ in range(2):
        start(target=TARGET, slots=4)
    for key in KEYS:
        enqueue(tmp_path, key, 20, hold_s=0.02)
    eventually(lambda: queue.value(SUCCEEDED) == 60, within_s=60, what="all jobs are done")
    assert queue.value(FAILED) == 0
    assert_sound(queue)


def test_a_killed_worker_frees_its_slots_and_no_key_is_ever_over_its_limit(start, queue, tmp_path):
    workers = [start(target=TARGET, slots=4) for _ in range(3)]
    for key in KEYS:
        enqueue(tmp_path, key, 14, hold_s=0.3)
    for worker in workers[:2]:
        eventually(lambda: queue.value(RUNNING) >= 4, within_s=30, what="jobs of the keys run")
        worker.kill()
    eventually(lambda: queue.value(SUCCEEDED) == 42, within_s=90, what="all jobs are done")
    assert queue.value(FAILED) == 0
    assert_sound(queue)


def test_the_slot_of_a_killed_worker_is_free_within_seconds(start, queue, tmp_path):
    first = start(target=TARGET, slots=1)
    enqueue(tmp_path, "a", 1, hold_s=600.0, most=1)
    eventually(lambda: queue.value(RUNNING) == 1, what="it runs")
    start(target=TARGET, slots=1)
    first.kill()
    killed = time.monotonic()
    eventually(lambda: queue.value("select max(attempt) from outlive.running") == 2, within_s=10, what="it runs again")
    assert time.monotonic() - killed < 10


def test_jobs_that_wait_for_a_slot_slow_no_other_job(start, queue, tmp_path):
    start(target=TARGET, slots=2)
    enqueue(tmp_path, "full", 2000, hold_s=600.0, most=1)
    eventually(lambda: queue.value(RUNNING) == 1, what="the key is full")
    app.enqueue_many([enter.job(str(tmp_path), f"free-{n}", 1, 0.0) for n in range(20)])
    eventually(lambda: queue.value(SUCCEEDED) == 20, within_s=20, what="the others run")


def test_a_job_with_a_key_runs_after_its_delay(start, queue, tmp_path):
    start(target=TARGET, slots=1)
    enter.using(concurrency_key="a", concurrency=1, delay="100ms").enqueue(str(tmp_path), "a", 1, 0.0)
    eventually(lambda: queue.value(SUCCEEDED) == 1, within_s=20, what="it is done")
