"""An operator drains a worker: it finishes its jobs, takes no others, and stops."""

from functools import partial
from uuid import UUID

import pytest

from outlive.states import State
from tests import faults
from tests.driving.commands import Cli, ended, started
from tests.waiting import eventually

BUSY = "select running > 0 from outlive.worker_states where name = %s"
ENDED = "select count(distinct job_id) from outlive.attempts where outcome = 'succeeded'"


def test_several_workers_are_told_to_drain_at_once(queue, database_url):
    for number in (1, 2, 3):
        queue.register_worker(UUID(int=number), name=f"web-{number}")
    told = "worker web-1 is told to drain\nworker web-2 is told to drain\n"
    cli = Cli(database_url)
    assert cli("drain", "web-1", "web-2", "--no-wait").out == told
    asked = "select name from outlive.workers where drain_requested_at is not null order by 1"
    assert queue.values(asked) == ["web-1", "web-2"]
    assert cli("drain", "--all", "--no-wait").out == told + "worker web-3 is told to drain\n"
    for words in ((), ("web-1", "--all")):
        refused = cli("drain", *words)
        assert (refused.code, refused.err) == (2, "outlive: drain needs the names of workers, or --all, and not both\n")


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


@pytest.mark.long
def test_a_fleet_that_is_scaled_in_under_load_loses_no_second_of_work(start, queue, database_url, tmp_path):
    """As Kubernetes does it: the command that waits, and then SIGTERM. Jobs come all the time."""
    workers = [start(slots=2, name=f"web-{n}") for n in range(3)]
    cli, made = Cli(database_url), 0

    def load() -> int:
        """More jobs, once most of those before have begun."""
        eventually(lambda: queue.value("select count(*) from outlive.waiting") < 20, within_s=60)
        slow = faults.app.enqueue_many(faults.slowly.job(str(tmp_path)) for _ in range(10))
        return len(slow) + len(faults.app.enqueue_many(faults.warm.job() for _ in range(200)))

    for worker, name in zip(workers[:2], ("web-0", "web-1"), strict=True):
        made += load()
        eventually(partial(queue.value, BUSY, name), within_s=20, what=f"{name} has jobs")
        with started() as commands:
            commands.append(drain := cli.process("drain", name))
            while drain.poll() is None:
                made += load()
            assert ended(drain).code == 0
        worker.stop()
    eventually(lambda: queue.value(ENDED) == made, within_s=60, what=f"{made} jobs have ended")
    assert set(queue.values("select outcome from outlive.attempts")) <= {"succeeded", "released"}
    slow = queue.value("select count(*) from outlive.jobs where task = %s", faults.slowly.name)
    begun, ended_well = (len(list(tmp_path.glob(f"{what}-*"))) for what in ("begun", "ended"))
    assert (begun, ended_well) == (slow, slow), "jobs that were given back had not begun"
