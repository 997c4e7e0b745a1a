"""An app that can't be imported for a while, as during a deploy, costs no job anything."""

import pytest

from outlive.states import Outcome, State
from tests.driving.jobs import attempts, finished
from tests.waiting import eventually

COLD = ("(recycle_after=100)\ndef version", "(preload=False, max_crashes=1, max_attempts=1)\ndef version")
BROKEN = {
    "a missing module": ("import nowhere_to_be_found", "ModuleNotFoundError"),
    "an exit": ("raise SystemExit('not now')", "not now"),
    "a death": ("import os; os._exit(9)", "exit code 9"),
    "a kill": ("import os; os.kill(os.getpid(), 9)", "signal 9"),
}


@pytest.mark.fault(64)
def test_a_job_whose_interpreter_cannot_import_the_app_is_given_back(start, queue, changing, tmp_path):
    source = tmp_path / f"{changing.__name__}.py"
    text = source.read_text().replace(*COLD)
    source.write_text(text)
    worker = start(target=f"{changing.__name__}:app", folder=tmp_path, slots=2)
    for told, (line, reason) in enumerate(BROKEN.values(), start=1):
        source.write_text(f"{line}\n{text}")
        jobs = [changing.version.enqueue() for _ in range(3)]
        eventually(lambda: all(attempts(queue, job) for job in jobs), within_s=20, what="they are tried")  # noqa: B023
        source.write_text(text)
        queue.make_ready()
        assert [job.result(timeout=40) for job in jobs] == [1, 1, 1]
        for job in jobs:
            *before, last = attempts(queue, job)
            assert {one.outcome for one in before} == {Outcome.RELEASED}
            assert all(reason in (one.error or "") for one in before)
            assert last.outcome is Outcome.SUCCEEDED
        assert worker.log().count("are retried every") == told


@pytest.mark.fault(64)
def test_an_interpreter_that_cannot_be_executed_blames_no_job(start, queue, changing, tmp_path):
    source = tmp_path / f"{changing.__name__}.py"
    source.write_text("import sys; sys.executable = '/nowhere/python'\n" + source.read_text().replace(*COLD))
    start(target=f"{changing.__name__}:app", folder=tmp_path, slots=1)
    job = changing.version.enqueue()
    eventually(lambda: attempts(queue, job), within_s=20, what="it is tried")
    (first, *_) = attempts(queue, job)
    assert first.outcome is Outcome.RELEASED
    assert "can't be executed" in (first.error or "")
    assert job.status() in (State.PENDING, State.RUNNING)


@pytest.mark.fault(64)
def test_a_child_that_has_imported_the_app_for_one_job_is_not_believed_to_have_it_for_the_next(
    start, queue, changing, tmp_path
):
    source = tmp_path / f"{changing.__name__}.py"
    options, cold = COLD
    text = source.read_text().replace(options, cold.replace("preload=False", "preload=False, recycle_after=100"))
    source.write_text(text)
    start(target=f"{changing.__name__}:app", folder=tmp_path, slots=1)
    assert changing.version.enqueue().result(timeout=20) == 1
    source.write_text(f"import nowhere_to_be_found\n{text}")
    job = changing.version.enqueue()
    eventually(lambda: attempts(queue, job), within_s=20, what="it is tried")
    assert attempts(queue, job)[0].outcome is Outcome.RELEASED
    source.write_text(text)
    queue.make_ready()
    assert job.result(timeout=40) == 1


def test_a_job_that_is_cancelled_while_its_interpreter_imports_the_app_does_not_begin(start, queue, changing, tmp_path):
    source = tmp_path / f"{changing.__name__}.py"
    text = source.read_text().replace("(recycle_after=100)\ndef wait", "(preload=False)\ndef wait")
    source.write_text(text)
    start(target=f"{changing.__name__}:app", folder=tmp_path, slots=1)
    importing, path = tmp_path / "importing", tmp_path / "path"
    until_told_to_stop = (
        "import pathlib, time\nfrom outlive.child import stops\n"
        f"pathlib.Path({str(importing)!r}).touch()\nwhile not stops.last_signal: time.sleep(0.01)\n"
    )
    source.write_text(until_told_to_stop + text)
    job = changing.wait.enqueue(str(path))
    eventually(importing.exists, within_s=20)
    job.cancel()
    assert finished(job) is State.CANCELLED
    [attempt] = attempts(queue, job)
    assert attempt.signal is None, "no kill was needed"
    assert not path.with_suffix(".started").exists()


def test_a_worker_of_an_app_without_tasks_says_that_it_runs_no_job(start, tmp_path):
    (tmp_path / "bare.py").write_text("import outlive\n\napp = outlive.App()\n")
    worker = start(target="bare:app", folder=tmp_path, slots=1)
    worker.says("the app has no tasks, so this worker runs no job: import the modules with tasks where the app is")
