"""A deploy is not a crash: nothing counts against a job whose worker was told to stop."""

import os
import signal
from pathlib import Path

import pytest

import outlive
from outlive import linux
from outlive.states import State
from tests import faults
from tests.driving.making import Queue
from tests.driving.workers import Start, alive
from tests.waiting import eventually

SLOTS = 6


def hold(path: Path, *ways: str) -> list[outlive.Job[None]]:
    """Fill the slots with jobs, and wait until all have begun."""
    tasks = [faults.hold, faults.hold, faults.hold_cold]
    jobs = [tasks[n % 3].enqueue(str(path), ways[n % len(ways)]) for n in range(SLOTS)]
    eventually(lambda: len(list(path.parent.glob("*.begun"))) == SLOTS, within_s=30, what="all have begun")
    return jobs


def assert_all_succeed_and_none_is_charged(
    start: Start, queue: Queue, jobs: list[outlive.Job[None]], path: Path
) -> None:
    """Let the jobs go on in a new worker. A single failure, crash or loss would have ended them."""
    path.touch()
    start(slots=SLOTS)
    eventually(lambda: all(job.status() is State.SUCCEEDED for job in jobs), within_s=60, what="all succeed")
    counts = queue.execute("select distinct failures, crashes, losses from outlive.attempts").fetchall()
    assert counts == [(0, 0, 0)]


@pytest.mark.parametrize("first", ["children", pytest.param("supervisor", marks=pytest.mark.long)])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stop_of_every_process_of_a_worker_is_charged_to_no_job(start, queue, tmp_path, first, number):
    """systemd stops a unit in this way, in any order of the processes."""
    worker, path = start(slots=SLOTS), tmp_path / "go on"
    jobs = hold(path, "plainly", "with a process")
    tree = [worker.pid, *worker.tree()]
    for pid in tree if first == "supervisor" else reversed(tree):
        linux.kill(pid, number)
    assert worker.process.wait(40) == 0
    assert_all_succeed_and_none_is_charged(start, queue, jobs, path)


@pytest.mark.long
def test_a_stop_that_reaches_the_processes_of_jobs_first_is_charged_to_no_job(start, queue, tmp_path):
    """When the worker hears of the stop, the jobs have failed because of it."""
    worker, path = start(slots=SLOTS), tmp_path / "go on"
    jobs = hold(path, "with a process")
    linux.kill(worker.pid, signal.SIGSTOP)
    kill_processes_of_jobs(tmp_path)
    eventually(lambda: not any(map(alive, pids_of_jobs(tmp_path))), what="the jobs have failed")
    for number in (signal.SIGTERM, signal.SIGCONT):
        linux.kill(worker.pid, number)
    assert worker.process.wait(40) == 0
    assert_all_succeed_and_none_is_charged(start, queue, jobs, path)


def test_a_job_whose_process_is_killed_alone_has_failed(start, queue, tmp_path):
    start(slots=1)
    job = faults.hold.enqueue(str(tmp_path / "never"), "with a process")
    eventually(lambda: pids_of_jobs(tmp_path))
    kill_processes_of_jobs(tmp_path)
    eventually(lambda: job.status() is State.FAILED)
    (only,) = queue.execute("select outcome, error from outlive.attempts").fetchall()
    assert only == ("failed", "RuntimeError: its process died")


def pids_of_jobs(folder: Path) -> list[int]:
    return [int(begun.name.split(".")[1]) for begun in folder.glob("*.begun")]


def kill_processes_of_jobs(folder: Path) -> None:
    for pid in pids_of_jobs(folder):
        for process in linux.children_of(pid):
            linux.kill(process, signal.SIGTERM)


@pytest.mark.long
@pytest.mark.parametrize("first", ["children", "supervisor"])
def test_a_kill_after_a_stop_is_charged_to_no_job(start, queue, tmp_path, first):
    """docker does this after ten seconds, whatever the grace."""
    worker, path = start(slots=SLOTS, grace_s="60"), tmp_path / "go on"
    jobs = hold(path, "stubbornly")
    tree = [worker.pid, *worker.tree()]
    for pid in tree if first == "supervisor" else reversed(tree):
        linux.kill(pid, signal.SIGTERM)
    told = "select stop_requested_at is not null from outlive.workers"
    eventually(lambda: queue.execute(told).fetchall() == [(True,)], what="the database knows of the stop")
    for pid in tree if first == "supervisor" else reversed(tree):
        linux.kill(pid)
    worker.process.wait(10)
    assert_all_succeed_and_none_is_charged(start, queue, jobs, path)


@pytest.mark.long
def test_a_stop_is_known_before_all_processes_are_gone(start, queue, changing, tmp_path):
    """A zygote that imports the app does not hear that it is to end, and a SIGKILL of the worker may come sooner."""
    worker = start(target=f"{changing.__name__}:app", folder=tmp_path, slots=1)
    importing = tmp_path / "importing"
    Path(changing.__file__).write_text(
        f"import pathlib, time\npathlib.Path({str(importing)!r}).touch()\ntime.sleep(600)\n"
    )
    linux.kill(worker.zygote())
    eventually(importing.exists, within_s=20, what="the new zygote imports")
    worker.send(signal.SIGTERM)
    eventually(lambda: queue.value("select state from outlive.workers") == "draining", what="the database knows it")
    assert worker.process.wait(20) == 0


def test_a_sigterm_for_a_job_alone_is_a_kill_after_a_second(start, queue, tmp_path):
    worker = start(slots=1)
    job = faults.hold.enqueue(str(tmp_path / "never"), "plainly")
    eventually(lambda: list(tmp_path.glob("*.begun")))
    (pid,) = pids_of_jobs(tmp_path)
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: job.status() is State.QUARANTINED)
    assert queue.execute("select outcome, signal from outlive.attempts").fetchall() == [("crashed", "SIGTERM")]
    assert alive(worker.pid)


def test_a_worker_with_many_jobs_ahead_stops_soon_and_gives_them_all_back(start, queue):
    faults.app.enqueue_stream(faults.warm.job(n) for n in range(20_000))
    worker = start(slots=4)
    ahead = "select count(*) from outlive.running"
    eventually(lambda: queue.value(ahead) > 2000, within_s=30, what="its children have many jobs ahead")
    linux.kill(worker.pid, signal.SIGTERM)
    assert worker.process.wait(10) == 0
    assert queue.value(ahead) == 0
    assert "does not answer" not in worker.log()
