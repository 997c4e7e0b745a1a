"""Children that should exit, processes above them that are stopped, and processes that jobs leave: none stays."""

import os
import shutil
import signal
import time

import pytest

from outlive import linux
from tests import faults
from tests.driving.jobs import number_in
from tests.driving.workers import alive, all_gone, cmdline, stopped
from tests.waiting import eventually


def test_a_child_that_does_not_exit_after_its_last_job_is_killed(start):
    worker = start(slots=1)
    for how in ("os._exit", "our loop"):
        pid = faults.stay_after_the_end.enqueue(how).result(timeout=20)
        eventually(lambda: not alive(pid), within_s=6, what="it is gone")  # noqa: B023
        assert faults.add.enqueue(1, 2).result(timeout=20) == 3
        assert ("after its last job: it is killed" in worker.log()) == (how == "our loop")


def test_a_warm_child_that_does_not_hear_its_dismissal_is_killed(start):
    worker = start(slots=1)
    pid = faults.stay_warm_for_ever.enqueue().result(timeout=20)
    worker.send(signal.SIGHUP)
    worker.says("the app was reloaded", within_s=20)
    eventually(lambda: not alive(pid), within_s=6, what="it is gone")


def test_processes_above_it_that_a_job_has_stopped_go_on_within_a_second(start):
    worker = start(slots=1)
    for above in (worker.zygote(), eventually(worker.parents)[0]):

        def stop(pid: int = above) -> bool:
            os.kill(pid, signal.SIGSTOP)
            return stopped(pid)

        for _ in range(3):
            eventually(stop, within_s=5, what="it is seen stopped, and was not continued in the same moment")
            began = time.monotonic()
            eventually(lambda: not stopped(above), within_s=10)  # noqa: B023
            assert time.monotonic() - began < 1.5, "a second, and something for a busy machine"


def test_a_stopped_zygote_does_not_outlive_its_worker(start):
    worker = start(slots=1)
    tree = worker.tree()

    def stop() -> bool:
        os.kill(worker.zygote(), signal.SIGSTOP)
        return stopped(worker.zygote())

    os.kill(worker.pid, signal.SIGSTOP)  # Otherwise it continues its zygote.
    eventually(stop, within_s=5)
    worker.kill()
    all_gone(tree, within_s=10, what="the zygote and its tree are gone")


@pytest.mark.fault(62)
def test_a_daemon_without_environment_is_gone_with_what_it_belongs_to(start, tmp_path):
    worker = start(slots=1)
    for end in ("its job", "its parent", "its worker"):
        task = faults.leave_a_daemon.using(max_attempts=1, max_crashes=1)
        job = task.enqueue(str(tmp_path / end), stay=end != "its job")
        pid = number_in(tmp_path / end)
        match end:
            case "its job":
                job.result(timeout=20)
            case "its parent":
                for parent in {faults.parent_of(child) for child in worker.children()}:
                    os.kill(parent, signal.SIGKILL)
                job.cancel()
            case _:
                worker.kill()
        eventually(lambda: not alive(pid), within_s=2, what="the daemon is gone")  # noqa: B023


def test_a_process_started_by_the_script_that_became_the_worker_stays(start):
    worker = start(slots=1, within=["sh", "-c", 'sleep 300 & exec "$@"', "sh"])
    (older,) = [pid for pid in linux.children_of(worker.pid) if b"sleep" in cmdline(pid)]
    zygote = worker.zygote()
    os.kill(zygote, signal.SIGKILL)
    worker.says("the zygote died")
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    assert alive(older)
    worker.stop()
    assert alive(older)
    os.kill(older, signal.SIGKILL)


@pytest.mark.fault(57)
def test_a_process_that_the_worker_may_not_kill_holds_up_nothing(start, tmp_path):
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        pytest.skip("only root can leave a process of root's behind")
    become_root = tmp_path / "become_root"
    shutil.copy(setpriv, become_root)
    become_root.chmod(0o4755)
    rights = "+dac_read_search,+dac_override"
    unprivileged = [
        *("--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}"),
    ]
    worker = start(slots=1, within=[setpriv, *unprivileged])
    pid = faults.leave_a_process_of_roots.enqueue(str(become_root)).result(timeout=20)
    try:
        assert [faults.add.enqueue(n, n).result(timeout=20) for n in range(5)] == [0, 2, 4, 6, 8]
        worker.says(f"process {pid}, left behind by a job, can't be killed", within_s=5)
        assert alive(pid)
        assert worker.stop(within_s=15) == 0
        assert worker.log().count("can't be killed") <= 2, "it is told by the zygote, and by the supervisor"
    finally:
        os.kill(pid, signal.SIGKILL)
