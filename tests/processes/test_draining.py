"""An operator drains a worker: it finishes its jobs, takes no others, and stops."""

import pytest

from outlive.states import State
from tests import faults
from tests.driving.commands import Cli, ended, started
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("faults_app")


def test_a_drained_worker_finishes_its_jobs_takes_no_others_and_stops(start, queue, database_url, tmp_path):
    worker, path = start(slots=3, name="web-7", grace_s="6", heartbeat_s="0.5"), tmp_path / "go on"
    assert "tests.faults.hold" in queue.value("select tasks from outlive.workers")
    running = [faults.hold.enqueue(str(path), "plainly") for _ in range(2)]
    eventually(lambda: all(job.status() is State.RUNNING for job in running), within_s=20)
    eventually(lambda: len(list(tmp_path.glob("*.begun"))) == 2, within_s=20)
    memory = "select memory_bytes > 20000000 from outlive.worker_states"
    eventually(lambda: queue.value(memory), what="a heartbeat tells the memory of the worker")
    cli = Cli(database_url)
    with started() as commands:
        commands.append(drain := cli.process("drain", "web-7", PYTHONUNBUFFERED="1"))
        assert drain.stdout is not None
        assert drain.stdout.readline() == "worker web-7 is told to drain\n"
        assert drain.stdout.readline() == "2 jobs still running\n"
        eventually(lambda: queue.values("select state from outlive.workers") == ["draining"], within_s=20)
        assert cli("drain", "web-7", "--no-wait").out == "worker web-7 is told to drain\n"
        waiting = faults.hold.enqueue(str(path), "plainly")
        assert worker.process.poll() is None
        assert [job.status() for job in running] == [State.RUNNING] * 2
        path.touch()
        ran = ended(drain)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "web-7 has stopped")
    assert worker.process.wait(20) == 0
    assert [job.status() for job in (*running, waiting)] == [State.SUCCEEDED, State.SUCCEEDED, State.PENDING]
    assert queue.values("select state from outlive.workers") == ["stopped"]
    assert queue.values("select distinct action from outlive.audit") == ["drain worker"]
    assert "drains, because an operator asked for it: 2 jobs are running" in worker.log()
