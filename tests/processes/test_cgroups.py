"""Real memory cgroups, of version 1: the worker makes its own, and the kernel runs out of memory in one."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from outlive.client.job import Job
from outlive.model import Attempt
from outlive.states import Outcome, State
from outlive.worker.limits import cgroups
from tests import faults
from tests.driving.jobs import attempts, begun, finished, number_in
from tests.driving.making import Queue
from tests.driving.workers import Worker, alive
from tests.processes.groups import HIDDEN, Group
from tests.waiting import eventually

MOUNTS = Path("/proc/self/mountinfo").read_text().splitlines()
EAT_SLOWLY = "import time\neaten = []\nwhile True: eaten.append(b'x' * 4_000_000); time.sleep(0.02)"
EAT = "eaten = []\nwhile True: eaten.append(b'x' * 1_000_000)"


@pytest.fixture
def in_shared_memory() -> Iterator[Path]:
    """A folder in /dev/shm."""
    path = Path(f"/dev/shm/outlive-test-{uuid4().hex}")
    path.mkdir()
    yield path
    shutil.rmtree(path)


def kill_for_memory(group: Group) -> None:
    """Let a process outside the worker's tree be killed because it takes more memory than its group may have."""
    before = group.kills()
    group.limit(30)
    stranger = subprocess.run([*group.within, sys.executable, "-c", EAT], check=False, timeout=20)
    assert stranger.returncode == -signal.SIGKILL
    assert group.kills() > before


@pytest.mark.long
@pytest.mark.fault(58)
def test_files_that_a_job_leaves_in_shared_memory_count_in_its_group(start, queue, group, in_shared_memory):
    worker = start(within=group.within)
    assert worker.says("memory is limited by cgroup v1")
    job = faults.leave_in_shared_memory.enqueue(str(in_shared_memory), 300)
    assert finished(job) is State.QUARANTINED
    (only,) = attempts(queue, job)
    assert (only.outcome, only.signal) == (Outcome.OUT_OF_MEMORY, "SIGKILL")
    assert "the kernel killed" in (only.error or "")
    assert 64_000_000 < (only.peak_memory_bytes or 0) < 150_000_000


@pytest.mark.long
def test_workers_at_once_have_groups_of_their_own_and_leave_none(start, group):
    workers = [start(within=group.within) for _ in range(2)]
    assert faults.fill_shared_memory.enqueue("memfd", 10).result(timeout=20) == 10
    tops = [path for path in group.below() if path.parent == group.path]
    assert sorted(path.name[8:44] for path in tops) == sorted(worker.id for worker in workers)
    for worker in workers:
        assert str(worker.zygote()) in (group.path / f"{top_of(worker, tops)}/zygote/cgroup.procs").read_text().split()
        assert worker.stop() == 0
    assert group.below() == []


def top_of(worker: Worker, tops: list[Path]) -> str:
    return next(path.name for path in tops if worker.id in path.name)


def test_a_job_that_lasts_has_a_group_with_all_that_it_has_started(start, group, tmp_path):
    start(within=group.within, slots=1)
    faults.leave_a_daemon.using(memory="64MB").enqueue(str(tmp_path / "daemon"), stay=True)
    daemon = str(number_in(tmp_path / "daemon"))

    def gathered() -> list[Path]:
        return [path for path in group.below() if daemon in (path / "cgroup.procs").read_text().split()]

    (its,) = eventually(lambda: [path for path in gathered() if path.name != "zygote"], what="it has a group")
    assert 64_000_000 < int((its / "memory.limit_in_bytes").read_text()) < 200_000_000
    eventually(lambda: len((its / "cgroup.procs").read_text().split()) == 2, what="it and its daemon are left")


@pytest.mark.long
@pytest.mark.fault(62)
def test_a_worker_that_was_killed_leaves_its_groups_to_the_next(start, group, tmp_path):
    """The daemon has nothing in its environment by which it could be found."""
    worker = start(within=group.within)
    faults.leave_a_daemon.enqueue(str(tmp_path / "daemon"), stay=True)
    daemon = number_in(tmp_path / "daemon")
    worker.kill_with_zygote()
    assert alive(daemon)
    following = start(within=group.within)
    assert not alive(daemon)
    assert [path.name[8:44] for path in group.below() if path.parent == group.path] == [following.id]


@pytest.mark.fault(11)
def test_the_kernel_out_of_memory_kills_the_child_and_not_the_supervisor(start, queue, group):
    group.limit(250)
    worker = start(within=group.within, slots=2)
    job = faults.eat_without_limit.enqueue()
    assert finished(job) is State.QUARANTINED
    (only,) = attempts(queue, job)
    assert (only.outcome, only.signal) == (Outcome.OUT_OF_MEMORY, "SIGKILL")
    assert worker.process.poll() is None
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3


def eat_up(group: Group, queue: Queue, jobs: list[Job[str]]) -> list[Attempt]:
    """Let strangers take memory in this group until the kernel has killed the process of each of these jobs.

    Each of them has less than a job by the kernel's measure.
    """
    with contextlib.ExitStack() as strangers:
        for _ in range(4):
            eating = strangers.enter_context(subprocess.Popen([*group.within, sys.executable, "-c", EAT_SLOWLY]))
            strangers.callback(eating.kill)
        eventually(lambda: all(attempts(queue, job) for job in jobs), within_s=40, what="all were killed")
    return [attempts(queue, job)[0] for job in jobs]


@pytest.mark.fault(67)
def test_jobs_that_the_kernel_kills_because_a_stranger_takes_all_memory_are_not_charged(start, queue, tmp_path, group):
    """The kernel prefers them to the stranger, also those that are far below a limit of their own."""
    group.limit(300)
    start(within=group.within, slots=2)
    tasks = faults.wait_for.using(max_crashes=1, max_losses=1), faults.wait_for.using(memory="200MB", max_crashes=1)
    jobs = [task.enqueue(str(tmp_path / "go")) for task in tasks]
    begun(tmp_path / "go", times=2)
    for killed in eat_up(group, queue, jobs):
        assert (killed.outcome, killed.signal) == (Outcome.RELEASED, "SIGKILL")
        assert "the kernel killed a process of the job for lack of memory, of which others used more" in str(
            killed.error
        )
    (tmp_path / "go").touch()
    assert [job.result(timeout=60) for job in jobs] == 2 * ["seen"]


@pytest.mark.long
@pytest.mark.fault(67)
def test_a_job_whose_group_was_full_of_page_cache_is_not_charged_when_a_stranger_takes_all_memory(
    start, queue, tmp_path, group
):
    """In version 1 the kernel counts it as a failure that it dropped page cache at the limit of a group."""
    group.limit(400)
    start(within=group.within, slots=1)
    job = faults.copy_a_file.enqueue(str(tmp_path / "go"))

    def failed() -> bool:
        return any(int((path / "memory.failcnt").read_text()) for path in group.below() if path.name.isdecimal())

    eventually(failed, within_s=30, what="page cache has filled its group")
    (killed,) = eat_up(group, queue, [job])
    assert (killed.outcome, killed.signal) == (Outcome.RELEASED, "SIGKILL")
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == "seen"


def killed_while_a_stranger_dies(queue: Queue, folder: Path, group: Group) -> Attempt:
    job = faults.wait_for.using(max_crashes=1).enqueue(str(folder / "go"))
    (pid,) = begun(folder / "go")
    kill_for_memory(group)
    os.kill(pid, signal.SIGKILL)
    (folder / "go").touch()
    assert finished(job) in (State.QUARANTINED, State.SUCCEEDED)
    return attempts(queue, job)[0]


@pytest.mark.long
def test_a_strangers_death_for_want_of_memory_is_told_as_a_possibility_where_there_is_no_group(
    start, queue, tmp_path, group
):
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("cgroups can be hidden from a worker only by root, with unshare")
    start(within=HIDDEN)
    first = killed_while_a_stranger_dies(queue, tmp_path, group)
    assert (first.outcome, first.signal) == (Outcome.RELEASED, "SIGKILL")
    assert "possibly this one" in (first.error or "")


def test_a_strangers_death_for_want_of_memory_is_no_evidence_where_there_are_groups(start, queue, tmp_path, group):
    assert start().says("memory is limited by cgroup v1")
    only = killed_while_a_stranger_dies(queue, tmp_path, group)
    assert (only.outcome, only.error) == (Outcome.CRASHED, "the process was killed by SIGKILL")


@pytest.mark.long
@pytest.mark.fault(12)
@pytest.mark.timeout(300)
def test_a_job_that_has_its_container_killed_for_memory_is_a_suspect_and_then_proven(start, queue, group):
    """The kernel chooses the supervisor, which is PID 1 of its container: with it the kernel kills all others."""
    if os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("choom"):
        pytest.skip("a container is made by root, with unshare and choom")
    group.limit(115)  # Little enough for the supervisor to be worse than the job by the kernel's measure.
    container = (
        *group.within,
        *("choom", "-n", "1000", "--", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    )
    poison = faults.eat_without_limit.using(max_losses=2).enqueue(oom_score=500)
    well = [faults.add.enqueue(n, n) for n in range(50)]
    worker, deaths = start(within=container, wait=False, slots=2, sweep_s="1"), 0

    def is_over() -> bool:
        nonlocal worker, deaths
        if worker.process.poll() is not None:
            worker, deaths = start(within=container, wait=False, slots=2, sweep_s="1"), deaths + 1
        return poison.status() is State.QUARANTINED and all(job.status() is State.SUCCEEDED for job in well)

    eventually(is_over, within_s=200, what="the poison is caught and all others are done")
    (killer,) = queue.execute("select id, losses, crashes, details from outlive.killers").fetchall()
    assert killer[:3] == (poison.id, 3, 0)
    assert "proven" in killer[3]
    assert deaths >= 3
    assert group.kills() + sum(Group(path).kills() for path in group.below()) >= 3


def test_the_doctor_says_which_way_is_in_force(group, database_url):
    def said(within: Sequence[str]) -> str:
        environ = {**os.environ, "OUTLIVE_DATABASE_URL": database_url}
        command = [*within, sys.executable, "-m", "outlive", "doctor"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60).stdout

    assert "memory is limited by cgroup v1" in said(group.within)
    if shutil.which("unshare"):
        assert "memory is measured every 50 ms: no cgroup is writable" in said(HIDDEN)


DELEGATE = """
import ctypes, os, subprocess, uuid
from outlive.worker.limits import cgroups
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # As a program that was started by this account.
groups = cgroups.Groups.make(uuid.uuid4())
sleeper = subprocess.Popen(["sleep", "600"])
group = groups.new(1)
group.limit(50_000_000)
group.gather(sleeper.pid)
print((group.path / "memory.limit_in_bytes").read_text().strip())
print((group.path / "cgroup.procs").read_text().split() == [str(sleeper.pid)])
groups.end()
print(sleeper.wait(10), groups.path.exists())
"""


def test_an_ordinary_account_makes_groups_in_a_subtree_that_was_given_to_it(group):
    if os.getuid() != 0:
        pytest.skip("only root gives a subtree away")
    for path in (group.path, *group.path.iterdir()):
        os.chown(path, 65534, 65534)
    ran = subprocess.run(
        [*group.within, sys.executable, "-c", DELEGATE], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout.split() == ["49999872", "True", "-9", "False"], ran.stderr
    assert group.below() == []


def test_a_group_of_version_2_kills_all_that_is_in_it():
    """This shows only the kill: the memory controller is bound to version 1 here."""
    top = next((Path(line.split()[4]) for line in MOUNTS if " - cgroup2 " in line), None)
    path = Path(top or "/", f"outlive-test-{uuid4().hex[:8]}")
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of version 2 can be made here: {error}")
    group = cgroups.Group(2, path)
    daemon = subprocess.Popen(["setsid", "sh", "-c", "sleep 600 & sleep 600"])
    try:
        group.add(daemon.pid)
        assert not group.remove()
        assert daemon.wait(10) == -signal.SIGKILL
    finally:
        eventually(group.remove, what="the group is gone")
    assert not path.exists()
