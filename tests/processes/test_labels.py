"""Labels: a fleet of different machines, where a job runs only on one that has what its task needs."""

import json
from pathlib import Path

import pytest

from outlive.states import State
from tests.driving.commands import Cli, ended
from tests.processes import labelled
from tests.waiting import eventually

TARGET = "tests.processes.labelled:app"
NEEDS_GPU = "no active worker has the label gpu, which the task tests.processes.labelled.draw needs"
NEEDS_BOTH = "no active worker has the labels gpu and eu, which the task tests.processes.labelled.draw_face needs"
RAN = "select split_part(task, '.', 4) || ' on ' || worker_name from outlive.attempts order by 1"


def test_a_job_runs_only_where_its_task_finds_all_that_it_needs(start, queue):
    plain = start(target=TARGET, name="plain", slots=1)
    start(target=TARGET, name="gpu", slots=1, labels="gpu")
    names = f"{labelled.draw.name}, {labelled.draw_face.name}"
    assert plain.says(f"2 tasks need labels that this worker does not have: {names}")
    assert [labelled.add.enqueue(1, n).result(20) for n in range(3)] == [1, 2, 3]
    assert [labelled.draw.enqueue(n).result(20) for n in range(3)] == ["picture 0", "picture 1", "picture 2"]
    face = labelled.draw_face.enqueue(1)
    start(target=TARGET, name="both", slots=1, labels="eu, gpu")
    assert face.result(20) == "face 1"
    assert {where for where in queue.values(RAN) if not where.startswith("add")} <= {
        *("draw on gpu", "draw on both", "draw_face on both")
    }


def test_a_job_whose_label_no_worker_has_waits_and_everything_says_why(start, database_url):
    cli = Cli(database_url)
    worker = start(target=TARGET, name="plain", slots=1, sweep_s="0.1")
    job = labelled.draw.enqueue(7)
    worker.says(f"jobs wait, and {NEEDS_GPU}: start one with --label gpu")
    found = {one["what"]: one["next"] for one in json.loads(cli("doctor", "--json").out)}
    assert found[f"{NEEDS_GPU}: 1 job is ready"] == "start one with --label gpu; outlive workers"
    shown = cli("show", job.id).out
    assert "needs      a worker with the label gpu" in shown
    assert f"{NEEDS_GPU}; start one with --label gpu" in shown
    listed = " ".join(cli("jobs", "--state", "pending").out.split())
    assert listed.endswith(f"{NEEDS_GPU}; start one with --label gpu")
    labelled.draw_face.enqueue(7)
    worker.says(f"jobs wait, and {NEEDS_BOTH}: start one with --label gpu --label eu")
    assert job.status() is State.PENDING
    with pytest.raises(TimeoutError, match=r"no active worker has the task or serves the queue of: .*draw"):
        job.result(0.1)


@pytest.mark.usefixtures("apps")
def test_the_labels_of_a_command_are_listed_with_its_worker(database_url):
    cli = Cli(database_url)
    job = labelled.draw_face.enqueue(1)
    ran = ended(cli.process("worker", TARGET, "--label", "gpu", "--label", "eu", "--batch", "--name", "machine-7"))
    assert ran.code == 0, ran.err
    assert job.result(0) == "face 1"
    [worker] = cli("workers", "--json").json
    assert worker["labels"] == ["gpu", "eu"]
    assert "gpu, eu" in cli("workers").out


def test_a_task_that_comes_to_need_a_label_is_left_to_others_after_a_reload(start, queue, changing, tmp_path):
    worker = start(target=f"{changing.__name__}:app", folder=tmp_path, slots=1, name="web-7")
    path = Path(changing.__file__)
    path.write_text(path.read_text().replace("(recycle_after=100)", "(needs='gpu')", 1))
    assert changing.app.worker("web-7").reload()
    worker.says("1 task needs labels that this worker does not have", within_s=20)
    tasks = "select tasks from outlive.workers"
    eventually(lambda: queue.value(tasks) == [changing.wait.name], what="it offers the other task alone")
