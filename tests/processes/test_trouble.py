"""A worker that can't begin any job claims none, gives back its waiting jobs, and reports the trouble."""

import os
import re
import signal

import pytest

from outlive import store
from outlive.operations.findings import judge_workers
from tests.driving.commands import Cli
from tests.driving.making import Queue
from tests.driving.workers import Worker
from tests.waiting import eventually

APP = """
import outlive
app = outlive.App()

@app.task
def quick():
    pass
"""


def succeeded_on(queue: Queue) -> list[tuple[str, int]]:
    done = "select worker::text, count(*) from outlive.attempts where outcome = 'succeeded' group by 1"
    return queue.execute(done).fetchall()


def trouble_of(queue: Queue, worker: Worker) -> str | None:
    row = queue.execute("select trouble from outlive.workers where id = %s", [worker.id]).fetchone()
    assert row
    return row[0] if row[0] is None else str(row[0])


@pytest.mark.parametrize(
    ("broken", "says"),
    [("raise RuntimeError('half deployed')", "RuntimeError: half deployed"), ("import time; time.sleep(600)", "again")],
)
def test_a_worker_without_a_zygote_claims_nothing_and_says_so(start, queue, tmp_path, broken, says):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        (folder / "half.py").write_text(APP)
    sick, well = (start(slots=2, target="half:app", folder=folder) for folder in folders)
    (folders[0] / "half.py").write_text(broken)
    os.kill(sick.zygote(), signal.SIGKILL)
    eventually(lambda: says in (trouble_of(queue, sick) or ""), what="the worker says what is wrong")
    queue.make_many(20, "half.quick", notify=True)
    eventually(lambda: succeeded_on(queue) == [(well.id, 20)], within_s=20, what="the other worker does it all")
    findings = list(judge_workers(queue.run(store.list_workers())))
    assert [(finding.level, says in finding.what) for finding in findings] == [("problem", True)]
    assert sick.log().count("this worker can't begin any job") <= 2  # The zygote died; the app can't be imported.
    if "raise" in broken:
        (folders[0] / "half.py").write_text(APP)
        eventually(lambda: trouble_of(queue, sick) is None, within_s=30, what="the worker can go on")
        assert well.stop() == 0
        queue.make("half.quick", notify=True)
        eventually(lambda: (sick.id, 1) in succeeded_on(queue))


def test_a_job_that_waits_for_a_child_goes_back_after_a_second(start, queue, tmp_path):
    """The worker's children, parents and zygote are stopped when the job comes."""
    (tmp_path / "half.py").write_text(APP)
    worker = start(slots=1, target="half:app", folder=tmp_path)
    eventually(lambda: len(worker.tree()) == 3)
    (tmp_path / "half.py").write_text("import time; time.sleep(600)")
    for pid in worker.tree():
        os.kill(pid, signal.SIGSTOP)
    queue.make("half.quick", notify=True)
    claimed = "select count(*) from outlive.running"
    eventually(lambda: queue.execute(claimed).fetchone() == (1,))
    os.kill(worker.zygote(), signal.SIGKILL)
    eventually(lambda: queue.execute(claimed).fetchone() == (0,), what="it is not kept")
    row = queue.execute("select outcome, crashes, losses from outlive.attempts").fetchall()
    assert row == [("released", 0, 0)]


def test_a_worker_that_is_stopped_is_shown_and_named_until_it_goes_on(start, queue, database_url):
    cli = Cli(database_url)
    worker = start(slots=1, heartbeat_s="2", stale_s="60", dead_s="120")
    worker.send(signal.SIGSTOP)
    eventually(lambda: "connected, " in cli("workers").out, within_s=20, what="its heartbeat is late")
    [finding] = judge_workers(queue.run(store.list_workers()))
    assert re.search(r"has sent no heartbeat for .* s, and sends one every 2 s", finding.what)
    assert f"whether pid {worker.pid} is stopped" in (finding.next or "")
    worker.send(signal.SIGCONT)
    eventually(lambda: "connected, " not in cli("workers").out, within_s=20, what="it sends one again")
    assert " active " in cli("workers").out
