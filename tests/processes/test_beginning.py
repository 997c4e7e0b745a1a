"""Jobs that are claimed and did not begin: they are never blamed, begin elsewhere, and can be cancelled."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer

import pytest

import outlive
from outlive import linux
from outlive.states import State
from tests import faults
from tests.driving.making import Queue
from tests.driving.workers import Worker
from tests.waiting import eventually

BREAKS_ITS_CHILDREN = """
import os
import outlive
app = outlive.App()
mine, read = os.getpid(), os.read

def broken(*arguments):
    if os.getpid() != mine:
        os._exit(7)
    return read(*arguments)

@app.task(max_crashes=1)
def innocent():
    pass

os.read = broken
"""

SHRINKING = """
import outlive
app = outlive.App()

@app.task
def stays():
    pass
"""
SHRINKING_TASK = """
@app.task
def goes():
    pass
"""


def ends(queue: Queue) -> set[tuple[str, int, int, int]]:
    return set(queue.execute("select outcome, failures, crashes, losses from outlive.attempts").fetchall())


def all_succeeded(jobs: Sequence[outlive.Job[None]], *, within_s: float = 30) -> None:
    eventually(lambda: all(job.status() is State.SUCCEEDED for job in jobs), within_s=within_s, what="all succeed")


@contextmanager
def frozen_children(worker: Worker, slots: int) -> Iterator[list[int]]:
    """Freezes the children that wait for their first job."""
    eventually(lambda: len(worker.children()) == slots)
    children = worker.children()
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    yield children
    for pid in children:
        linux.kill(pid, signal.SIGCONT)


def test_jobs_given_to_children_that_die_idle_are_not_blamed(start, queue, tmp_path):
    worker = start(slots=2)
    with frozen_children(worker, 2) as children:
        jobs = [faults.touch.enqueue(str(tmp_path / str(n))) for n in range(2)]
        eventually(lambda: queue.count("running") == 2)
        for pid in children:
            linux.kill(pid)
        all_succeeded(jobs)
    assert {(failures, crashes, losses) for _, failures, crashes, losses in ends(queue)} == {(0, 0, 0)}


def test_jobs_that_had_not_begun_are_not_lost_with_their_zygote(start, queue, tmp_path):
    worker = start(slots=2)
    with frozen_children(worker, 2):
        jobs = [faults.touch.using(max_losses=1).enqueue(str(tmp_path / str(n))) for n in range(2)]
        eventually(lambda: queue.count("running") == 2)
        os.kill(worker.zygote(), signal.SIGKILL)
        all_succeeded(jobs)
    assert {(failures, crashes, losses) for _, failures, crashes, losses in ends(queue)} == {(0, 0, 0)}


def test_a_job_whose_child_does_not_run_begins_in_another(start, tmp_path):
    worker = start(slots=2)
    with frozen_children(worker, 2):
        all_succeeded([faults.touch.enqueue(str(tmp_path / str(n))) for n in range(2)], within_s=20)


def test_a_job_before_which_every_child_dies_is_blamed_in_the_end(start, queue, tmp_path):
    (tmp_path / "broken.py").write_text(BREAKS_ITS_CHILDREN)
    start(slots=1, target="broken:app", folder=tmp_path)
    queue.make("broken.innocent", notify=True)
    held = "select why from outlive.held"
    eventually(lambda: queue.execute(held).fetchall() == [("quarantined",)], within_s=30)
    assert {("released", 0, 0, 0), ("crashed", 0, 1, 0)} == ends(queue)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(("task", "many"), [(faults.warm_until, 500), (faults.fresh_until, 50)])
def test_nothing_waits_behind_a_job_that_runs_over(start, queue, tmp_path, workers, task, many):
    """Another slot takes the jobs that were claimed ahead; with one slot per worker, the other worker does."""
    for _ in range(workers):
        start(slots=2 // workers)
    slow = tmp_path / "slow"
    all_succeeded(faults.app.enqueue_many(task.job("") for _ in range(many)), within_s=60)  # Its pace is known now.
    first, *quick = faults.app.enqueue_many(task.job(path) for path in [str(slow), *[""] * many])
    all_succeeded(quick)
    assert first.status() is State.RUNNING
    slow.touch()
    all_succeeded([first])
    assert {(failures, crashes, losses) for _, failures, crashes, losses in ends(queue)} == {(0, 0, 0)}


def test_no_more_jobs_are_claimed_ahead_while_every_slot_has_a_long_one(start, queue, tmp_path):
    start(slots=2)
    slow = tmp_path / "slow"
    task = faults.fresh_until
    all_succeeded(faults.app.enqueue_many(task.job("") for _ in range(50)), within_s=60)  # Its pace is known now.
    jobs = faults.app.enqueue_many(task.job(path) for path in [str(slow)] * 2 + [""] * 50)
    Timer(2.5, slow.touch).start()
    all_succeeded(jobs, within_s=60)
    assert queue.values("select job_id from outlive.attempts where outcome = 'released' and attempt > 1") == []


def test_a_job_that_is_cancelled_before_it_begins_never_begins(start, queue, tmp_path):
    worker = start(slots=1)
    with frozen_children(worker, 1):
        job = faults.touch.enqueue(str(tmp_path / "begun"))
        eventually(lambda: queue.count("running") == 1)
        assert job.cancel()
        eventually(lambda: job.status() is State.CANCELLED, within_s=4, what="it is cancelled before it begins")
    assert faults.add.enqueue(1, 1).result(timeout=30) == 2  # By the child that was stopped.
    assert not (tmp_path / "begun").exists()


def test_jobs_whose_task_is_gone_when_they_are_taken_back_wait_for_another_worker(start, queue, tmp_path):
    source = tmp_path / "shrinking.py"
    source.write_text(SHRINKING + SHRINKING_TASK)
    worker = start(slots=2, target="shrinking:app", folder=tmp_path)
    with frozen_children(worker, 2):
        queue.make_many(2, "shrinking.goes", notify=True)
        eventually(lambda: queue.count("running") == 2)
        source.write_text(SHRINKING)
        worker.send(signal.SIGHUP)
        eventually(lambda: len(ends(queue)) > 0 and queue.count("running") == 0, within_s=20)
    assert ends(queue) == {("released", 0, 0, 0)}
    queue.make_many(20, "shrinking.stays", notify=True)
    succeeded = "select count(*) from outlive.attempts where state = 'succeeded'"
    eventually(lambda: queue.execute(succeeded).fetchall() == [(20,)], within_s=20)
    eventually(lambda: len(worker.children()) == 2, what="no child is left over")
    assert "Traceback" not in worker.log()
