"""What an app runs once in each process, before its first job, and for each job that fails for good."""

import importlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outlive import Outcome, State, linux
from outlive.worker.processes.zygotes import MOST_LEAVING
from tests.driving.jobs import attempts, finished
from tests.driving.workers import alive
from tests.waiting import eventually

SOURCE = """
import atexit, os, pathlib, threading
from uuid import UUID
import outlive

app = outlive.App()
here = pathlib.Path(__file__).parent
opened = []

def note(what: str) -> None:
    with (here / "ended").open("a") as ended:
        ended.write(f"{what} {os.getpid()}\\n")
    if (here / "hang").exists():
        threading.Event().wait()

atexit.register(note, "imported")

@app.on_process_start
def open_client() -> None:
    atexit.register(note, "opened")
    if (here / "broken").exists():
        raise ConnectionError("no client")
    if (here / "broken once").exists():
        (here / "broken once").unlink()
        raise ConnectionError("no client")
    if (here / "endless").exists():
        threading.Event().wait()
    opened.append((os.getpid(), open(__file__)))
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def pids() -> list[int]:
    return [os.getpid(), *(pid for pid, _ in opened)]

fresh, cold, clean, warm = (
    app.task(name=f"{name}.{__name__}", backoff=0, **options)(pids)
    for name, options in {
        "fresh": {}, "cold": {"preload": False}, "clean": {"recycle_after": "clean"}, "warm": {"recycle_after": 100}
    }.items()
)

@app.on_failed
@app.task(max_attempts=1)
def tell(job: UUID, error: str) -> None:
    with (here / "told").open("a") as told:
        print(job, error, file=told)
    raise ValueError("not even this")
"""


@pytest.fixture
def shop(apps: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"prepared_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def test_it_runs_once_in_each_process_and_is_no_change_by_a_job(start, shop, tmp_path):
    start(slots=1, target=f"{shop.__name__}:app", folder=tmp_path)
    for task, processes in ((shop.fresh, 4), (shop.cold, 4), (shop.warm, 1), (shop.clean, 1)):
        ran = [task.enqueue().result(timeout=30) for _ in range(4)]
        assert all(own == prepared and not more for own, prepared, *more in ran), ran
        assert len({own for own, *_ in ran}) == processes, task.name


def test_a_process_that_ends_runs_the_exit_functions_that_were_registered_in_it(start, shop, tmp_path):
    worker = start(slots=1, target=f"{shop.__name__}:app", folder=tmp_path)
    fresh, cold, warm = (task.enqueue().result(timeout=30)[0] for task in (shop.fresh, shop.cold, shop.warm))
    worker.stop()
    ended = (tmp_path / "ended").read_text().splitlines()
    assert ended == [f"opened {fresh}", f"opened {cold}", f"imported {cold}", f"opened {warm}"]


def test_an_exit_function_that_hangs_costs_its_job_nothing_and_its_process_is_killed(start, shop, tmp_path):
    (tmp_path / "hang").touch()
    worker = start(slots=1, target=f"{shop.__name__}:app", folder=tmp_path)
    first, second = (shop.fresh.enqueue().result(timeout=20)[0] for _ in range(2))
    eventually(lambda: not alive(first) and not alive(second), within_s=8, what="they are gone")
    assert f"child {first} still runs 2 s after its last job: it is killed" in worker.log()


def test_exit_functions_that_take_long_do_not_fill_the_machine_with_processes(start, shop, tmp_path):
    (tmp_path / "hang").touch()
    worker = start(slots=1, target=f"{shop.__name__}:app", folder=tmp_path)
    jobs = shop.app.enqueue_many(shop.fresh.job() for _ in range(MOST_LEAVING + 40))
    most = 0
    while any(job.status() is not State.SUCCEEDED for job in jobs):
        most = max(most, len(linux.descendants_of(worker.pid)))
    assert MOST_LEAVING < most < MOST_LEAVING + 15


def test_what_it_raises_is_the_error_of_the_job_which_is_retried(start, shop, queue, tmp_path):
    (broken := tmp_path / "broken").touch()
    start(slots=3, target=f"{shop.__name__}:app", folder=tmp_path)
    jobs = [task.using(max_attempts=1000).enqueue() for task in (shop.fresh, shop.warm, shop.clean)]
    eventually(lambda: all(len(attempts(queue, job)) > 1 for job in jobs), within_s=20)
    broken.unlink()
    for job in jobs:
        own, prepared = job.result(timeout=20)
        assert own == prepared
        first = attempts(queue, job)[0]
        assert first.outcome is Outcome.FAILED
        assert first.error == "ConnectionError: no client (in open_client, before the first job of its process)"
        assert "in open_client" in (first.stack or "")


def test_it_counts_as_the_jobs_time(start, shop, queue, tmp_path):
    (tmp_path / "endless").touch()
    start(slots=1, target=f"{shop.__name__}:app", folder=tmp_path)
    job = shop.warm.using(timeout=0.5, max_attempts=1).enqueue()
    assert finished(job) is State.FAILED
    assert attempts(queue, job)[0].outcome is Outcome.TIMED_OUT


def test_the_callback_of_the_app_learns_of_each_failure_but_its_own(start, shop, queue, tmp_path):
    (tmp_path / "broken once").touch()
    start(slots=2, target=f"{shop.__name__}:app", folder=tmp_path)
    job = shop.fresh.using(max_attempts=1).enqueue()
    assert finished(job) is State.FAILED
    callback = eventually(lambda: queue.values("select id from outlive.jobs where task like '%.tell'"))
    eventually(lambda: queue.state_of(callback[0]) is State.FAILED, within_s=20)
    said = (tmp_path / "told").read_text()
    assert said == f"{job.id} ConnectionError: no client (in open_client, before the first job of its process)\n"
    assert len(queue.values("select id from outlive.jobs")) == 2
