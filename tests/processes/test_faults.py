"""Faults that one worker survives. The number in each docstring is the fault's."""

import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import outlive
from outlive import linux
from outlive.states import Outcome, State
from tests import faults
from tests.driving.databases import end_sessions
from tests.driving.jobs import attempts, begun, finished, number_in
from tests.driving.making import Queue
from tests.driving.workers import Start, Worker, alive, all_gone
from tests.processes.changing import source
from tests.proxy import Boundary, Link, Proxy, Side
from tests.waiting import eventually

PIDS = Path("/sys/fs/cgroup/pids")


def succeeded(queue: Queue) -> tuple[int, int]:
    """The number of attempts that have succeeded, and of their jobs."""
    row = queue.execute(
        "select count(*), count(distinct job_id) from outlive.attempts where outcome = 'succeeded'"
    ).fetchone()
    assert row
    return row[0], row[1]


# Processes


def exact(busy_s: float, quiet_s: float) -> list[object]:
    """The bound for a machine that has other work, and the exact one."""
    return [pytest.param(busy_s, id="busy"), pytest.param(quiet_s, id="exact", marks=pytest.mark.long)]


@pytest.mark.fault(1)
@pytest.mark.parametrize("within_s", exact(1.0, 0.1))
def test_a_killed_child_is_recorded_at_once(start, queue, tmp_path, within_s):
    start()
    for n in range(5):
        job = faults.wait_for.using(max_crashes=1).enqueue(str(tmp_path / f"never-{n}"))
        (pid,) = begun(tmp_path / f"never-{n}")
        eventually(lambda: job.status() is State.RUNNING)  # noqa: B023
        os.kill(pid, signal.SIGKILL)
        found = eventually(lambda: attempts(queue, job), within_s=within_s, what="the death is recorded")  # noqa: B023
        assert found[0].signal == "SIGKILL"


@pytest.mark.long
@pytest.mark.fault(3)
def test_a_supervisor_killed_at_any_moment_loses_nothing(start, queue):
    jobs = faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(1000))
    chance = random.Random(3)
    settings = {"lease_s": "2", "sweep_s": "1", "max_losses": "none"}
    for _ in range(3):
        before = succeeded(queue)[0]
        worker = start(**settings)
        most = before + chance.randrange(1, 200)
        eventually(lambda: succeeded(queue)[0] >= most, within_s=20, what="some are done")  # noqa: B023
        worker.kill()
    start(**settings)
    eventually(lambda: succeeded(queue)[1] == len(jobs), within_s=60, what="all are done")
    assert succeeded(queue) == (len(jobs), len(jobs))


def some_of_each() -> list[outlive.Job[Any]]:
    """Jobs that succeed, fail, go on from a checkpoint, and share a process."""
    warm = [faults.warm.enqueue(n) for n in range(3)]
    return [faults.add.enqueue(1, 1), faults.raise_error.enqueue(), faults.step_by_step.enqueue(2), *warm]


def ends(queue: Queue, jobs: list[outlive.Job[Any]]) -> list[str]:
    """The ends of these jobs, in order. A job that ended twice is there twice."""
    rows = queue.execute(
        "select a.state from unnest(%s::uuid[]) with ordinality as job (id, n) join outlive.attempts a on job_id = id"
        " where a.state in ('succeeded', 'failed', 'cancelled', 'quarantined') order by n",
        [[job.id for job in jobs]],
    )
    return [state for (state,) in rows]


ENDS = ["succeeded", "failed", "succeeded", "succeeded", "succeeded", "succeeded"]


def count_boundaries(start: Start, queue: Queue, url: str, folder: Path) -> int:
    """Count the statements that a worker needs from its start until some jobs of each kind have ended."""
    jobs = some_of_each()
    with Proxy(url, folder) as proxy:
        worker = start(url=proxy.url, slots=2)
        eventually(lambda: ends(queue, jobs) == ENDS, within_s=20)
        needed = proxy.boundaries
        worker.stop()
    return needed


def kill_at(start: Start, url: str, folder: Path, n: int, side: Side) -> list[int]:
    """Run a worker, and kill its supervisor at this boundary; returns the processes that were below it."""
    tree: list[int] = []

    def kill(boundary: Boundary) -> None:
        if (boundary.n, boundary.side) == (n, side):
            tree.extend(worker.tree())
            os.kill(worker.pid, signal.SIGKILL)
            boundary.link.cut()

    with Proxy(url, folder, at_boundary=kill) as proxy:
        worker = start(url=proxy.url, slots=2, wait=False)
        eventually(lambda: worker.process.poll() is not None, within_s=20, what=f"statement {n} comes")
        assert worker.process.returncode == -signal.SIGKILL
    return tree


@pytest.mark.fault(3)
@pytest.mark.timeout(1800)  # It starts many workers, which takes long on a machine that is busy.
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.long)])
def test_a_supervisor_killed_at_a_statements_boundary_loses_nothing(start, queue, database_url, tmp_path, most):
    needed = count_boundaries(start, queue, database_url, tmp_path)
    boundaries = [(n, side) for n in range(1, needed + 1) for side in Side]
    if most:
        boundaries = [boundaries[len(boundaries) * at // most] for at in range(most)]
    # It is stopped while the other one works: starting it again each time would take twice as long.
    heir = start(slots=2, sweep_s="1")
    for n, side in boundaries:
        os.kill(heir.pid, signal.SIGSTOP)
        jobs = some_of_each()
        tree = kill_at(start, database_url, tmp_path, n, side)
        queue.execute("update outlive.running set lease_until = '2000-01-01Z'")
        os.kill(heir.pid, signal.SIGCONT)
        what = f"killed {side.value} {n} of {needed}"
        eventually(lambda: len(ends(queue, jobs)) >= len(jobs), within_s=20, what=what)  # noqa: B023
        all_gone(tree, within_s=2, what=what)
        assert ends(queue, jobs) == ENDS, what
        left = queue.execute("select from outlive.running union all select from outlive.waiting")
        assert left.fetchall() == [], what
    assert heir.stop() == 0


@pytest.mark.fault("4b")
@pytest.mark.parametrize("within_s", exact(5.0, 1.0))
def test_a_killed_zygote_costs_no_job_anything_and_is_replaced(start, queue, tmp_path, within_s):
    """The new zygote has imported the app, and has run a job."""
    worker = start()
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    os.kill(worker.zygote(), signal.SIGKILL)
    killed = time.monotonic()
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    took_s = time.monotonic() - killed
    print(f"a job of the new zygote had run after {took_s:.2f} s")
    assert took_s < within_s
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"
    assert [one.outcome for one in attempts(queue, job)] == [Outcome.SUCCEEDED]
    eventually(lambda: not worker.orphaned_parents(), what="its parents are gone")


@pytest.mark.fault(67)
def test_six_deaths_of_the_zygote_under_one_job_are_charged_to_no_job(start, queue, tmp_path):
    worker = start(slots=3)
    jobs = [faults.wait_for.enqueue(str(tmp_path / "go")) for _ in range(2)]
    begun(tmp_path / "go", times=2)
    for _ in range(6):
        os.kill(worker.zygote(), signal.SIGKILL)
        assert faults.add.enqueue(1, 1).result(timeout=60) == 2
    (tmp_path / "go").touch()
    assert [job.result(timeout=20) for job in jobs] == ["seen", "seen"]
    for job in jobs:
        assert [one.outcome for one in attempts(queue, job)] == [Outcome.SUCCEEDED]


def above(worker: Worker, pid: int) -> int:
    """The child of this worker that has this process below it; 0 if none has."""
    return next((child for child in worker.children() if pid in linux.descendants_of(child)), 0)


@pytest.mark.fault("4b")
def test_a_job_whose_zygote_is_dead_ends_with_its_evidence_whatever_dies_next(start, queue, tmp_path):
    """Its parent, its own process, or its supervisor."""
    worker = start(slots=3)
    jobs = [faults.orphan_and_wait.using(max_crashes=1).enqueue(str(tmp_path / str(n))) for n in range(3)]
    below = [[number_in(tmp_path / name) for name in (str(n), f"{n}.plain")] for n in range(3)]
    os.kill(worker.zygote(), signal.SIGKILL)
    worker.says("the zygote died", within_s=20)
    children = {
        job.id: eventually(lambda: above(worker, orphans[1]))  # noqa: B023
        for job, orphans in zip(jobs, below, strict=True)
    }
    os.kill(children[jobs[0].id], signal.SIGKILL)
    assert finished(jobs[0]) is State.QUARANTINED
    assert attempts(queue, jobs[0])[0].error == "the process was killed by SIGKILL"
    os.kill(faults.parent_of(children[jobs[1].id]), signal.SIGKILL)
    eventually(lambda: attempts(queue, jobs[1]), within_s=20)
    assert attempts(queue, jobs[1])[0].outcome is Outcome.RELEASED
    assert not any(alive(pid) for pid in (*below[0], *below[1]))
    worker.kill()
    eventually(lambda: not any(alive(pid) for pid in (*below[2], children[jobs[2].id])), within_s=5)


@pytest.mark.fault("4b", 7)
def test_a_stopped_parent_goes_on(start, queue):
    worker = start(slots=1)
    job = faults.stop_parent.enqueue()
    assert finished(job) is State.FAILED
    assert attempts(queue, job)[0].outcome is Outcome.TIMED_OUT
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    assert worker.process.poll() is None


RAISED = ("sh", "-c", 'echo 400 > /proc/self/oom_score_adj && exec "$0" "$@"')


@pytest.mark.fault(11)
@pytest.mark.parametrize("within", [(), RAISED], ids=["as it is", "raised"])
def test_the_kernel_prefers_to_kill_the_child(start, within):
    """Rather than what is above it, and its zygote rather than the supervisor."""
    worker = start(within=within)
    above = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (worker.zygote(), worker.pid)]
    assert faults.own_oom_score.enqueue().result(timeout=20) > above[0] > above[1]
    assert {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in worker.parents()} == {above[0]}


@pytest.mark.fault(14)
def test_a_refused_fork_stops_claims_and_is_over_when_it_can_fork_again(start, queue):
    group = PIDS / f"outlive-test-{uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup that limits processes can be made here: {error}")
    worker = start(slots=2)
    try:
        for pid in (worker.pid, *worker.tree()):
            (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text("1")  # Also what ends makes no room.
        jobs = [faults.add.enqueue(n, n) for n in range(20)]
        worker.says("a child could not be forked", within_s=20)
        eventually(lambda: not queue.count("running"), what="what it had claimed before has ended")
        told = time.monotonic()
        eventually(lambda: queue.count("running") or time.monotonic() > told + 3)
        assert not queue.count("running")
        (group / "pids.max").write_text("max")
        assert [job.result(timeout=20) for job in jobs] == [2 * n for n in range(20)]
        assert worker.says("children can be forked again")
    finally:
        worker.stop()
        group.rmdir()


@pytest.mark.fault(18)
def test_a_worker_without_descriptors_says_so_and_recovers(start, queue):
    worker = start(slots=2)
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    usual = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    opened = {int(name) for name in os.listdir(f"/proc/{worker.pid}/fd")}
    free = min({*range(len(opened) + 1)} - opened)  # Above the last one there may be room, if one is open for a moment.
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (free, usual[1]))
    jobs = [faults.add.enqueue(n, n) for n in range(20)]
    worker.says("a child could not be forked", within_s=20)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, usual)
    assert [job.result(timeout=20) for job in jobs] == [2 * n for n in range(20)]
    eventually(lambda: len(os.listdir(f"/proc/{worker.pid}/fd")) <= len(opened) + 3, what="none has leaked")


@pytest.mark.fault(15)
@pytest.mark.parametrize("megabytes", [100, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_a_flood_without_a_newline_keeps_its_end_and_disturbs_no_other_job(start, queue, megabytes):
    worker = start(slots=2)
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    before = worker.peak_bytes()
    flood = faults.flood.enqueue(megabytes)
    eventually(lambda: flood.status() is State.RUNNING)
    neighbours = 0
    while flood.status() is State.RUNNING:
        assert faults.add.enqueue(neighbours, 1).result(timeout=5) == neighbours + 1
        neighbours += 1
    assert neighbours > 1
    assert flood.result(timeout=1) == "done"
    output = attempts(queue, flood)[0].output or ""
    assert 65_000 < len(output) <= 64 * 1024
    assert output.strip("x") == "the end"
    assert worker.peak_bytes() - before < 16_000_000


@pytest.mark.fault(16)
@pytest.mark.parametrize("megabytes", [100, pytest.param(1_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_a_value_too_large_for_its_message_fails_the_job_or_is_cut(start, queue, admin, megabytes):
    worker = start(slots=1)  # One after the other: each needs several times as much memory as it says.
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    before = worker.peak_bytes()
    kinds = ("progress", "result", "checkpoint", "error", "cause")
    jobs = [faults.say_too_much.enqueue(kind, megabytes) for kind in kinds]
    states = [finished(job, within_s=120) for job in jobs]
    assert states == [State.SUCCEEDED, *[State.FAILED] * 4]
    errors = [attempts(queue, job)[-1].error or "" for job in jobs[1:]]
    reasons = ["over the limit of", "over the limit of", "mmm", "RuntimeError: see its cause"]
    assert all(reason in error for reason, error in zip(reasons, errors, strict=True)), [e[:200] for e in errors]
    assert max(map(len, errors)) < 10_000
    stacks = [attempts(queue, job)[-1].stack or "" for job in jobs[3:]]
    assert all(0 < len(stack) < 100_000 for stack in stacks)
    assert "see its cause" in stacks[1]
    assert admin.execute("select length(message) from outlive.progress").fetchall() == [(2000,)]
    assert worker.peak_bytes() - before < 16_000_000
    assert worker.process.poll() is None


@pytest.mark.fault(17)
def test_a_child_that_says_nonsense_harms_only_itself(start, queue):
    worker = start(slots=2)
    nonsense = ("noise", "long frame", "wrong token", "no outcome")
    killed = [faults.say_garbage.enqueue(kind) for kind in nonsense]
    refused = [faults.say_garbage.enqueue(kind) for kind in ("no json", "deep json", "no number")]
    others = [faults.add.enqueue(n, n) for n in range(5)]
    harmless: list[outlive.Job[Any]] = [faults.say_garbage.enqueue("bad progress"), faults.close_output.enqueue()]
    assert {finished(job) for job in killed} == {State.QUARANTINED}
    assert {finished(job) for job in refused} == {State.FAILED}
    assert [other.result(timeout=20) for other in others] == [2 * n for n in range(5)]
    assert {finished(job) for job in harmless} == {State.SUCCEEDED}
    assert all("its process" in (attempts(queue, job)[0].error or "") for job in killed)
    assert all("can't be written" in (attempts(queue, job)[0].error or "") for job in refused)
    assert eventually(lambda: worker.log().count("it is killed") == len(killed))


def test_an_exception_that_makes_no_sense_is_no_crash(start, queue):
    start(slots=2)
    long, half, paused = (faults.raise_odd.enqueue(kind) for kind in ("long retry", "half made", "paused"))
    assert {finished(job) for job in (long, half)} == {State.FAILED}
    error = attempts(queue, long)[0].error or ""
    assert error.startswith("Retry: …xxx")
    assert "xxx (after is 'soon': it must be a duration" in error
    assert (attempts(queue, half)[0].error or "").startswith("HalfMade")
    eventually(lambda: len(attempts(queue, paused)) == 2)
    assert {one.outcome for one in attempts(queue, paused)} == {Outcome.RELEASED}


@pytest.mark.fault(20)
def test_as_pid_1_it_heeds_signals_and_reaps_zombies(start, tmp_path):
    within = ["unshare", "--fork", "--pid", "--mount-proc"]
    if os.spawnvp(os.P_WAIT, within[0], [*within, "true"]) != 0:
        pytest.skip("no PID namespace can be made here")
    worker = start(within=within)
    (init,) = linux.children_of(worker.pid)
    faults.leave_grandchildren.enqueue(str(tmp_path / "grandchild")).result(timeout=20)
    faults.kill_parent.using(max_crashes=1).enqueue()
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    eventually(lambda: all(alive(pid) for pid in linux.descendants_of(init)), what="no zombie is left")
    os.kill(init, signal.SIGTERM)
    assert worker.process.wait(20) == 0
    assert "stopped" in worker.log()


@pytest.mark.fault(21)
def test_a_job_claimed_and_not_begun_is_given_back(start, queue, tmp_path):
    worker, path = start(slots=1), tmp_path / "begun"
    eventually(worker.children)

    def claimed() -> outlive.Job[None] | None:
        """A job that was given to a stopped child. A job that another child begins first does not count."""
        path.unlink(missing_ok=True)
        signal_all(worker.tree(), signal.SIGSTOP)
        job = faults.touch.enqueue(str(path))
        eventually(lambda: job.status() is not State.PENDING, within_s=20, what="it is claimed")
        tree = [worker.pid, *worker.tree()]
        signal_all(tree, signal.SIGSTOP)
        if job.status() is State.RUNNING and not path.exists():
            return job
        signal_all(tree, signal.SIGCONT)
        return None

    job = eventually(claimed, within_s=60, what="a job is claimed and did not begin yet")
    assert job
    signal_all([worker.pid], signal.SIGTERM, signal.SIGCONT)
    assert worker.process.wait(20) == 0
    assert job.status() is State.PENDING
    assert [one.outcome for one in attempts(queue, job)] == [Outcome.RELEASED]
    assert not path.exists()


def signal_all(pids: list[int], *numbers: int) -> None:
    for pid in pids:
        for number in numbers:
            linux.kill(pid, number)


@pytest.mark.fault(21)
def test_a_worker_can_be_stopped_while_it_starts(start, tmp_path):
    (tmp_path / "slow.py").write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(600)\n")
    worker = start(target="slow:app", wait=False, folder=tmp_path)
    eventually((tmp_path / "importing").exists, within_s=20)
    assert worker.stop(within_s=10) == 0


@pytest.mark.fault(22)
def test_an_app_that_cannot_be_imported_harms_no_job(start):
    job = faults.add.enqueue(1, 1)
    worker = start(target="tests.no_such_module:app", wait=False)
    assert worker.process.wait(30) == 3
    assert "no_such_module" in worker.log()
    assert job.status() is State.PENDING
    start()
    assert job.result(timeout=20) == 2


# The database and the way to it


@pytest.mark.fault(30)
def test_sessions_killed_in_the_middle_of_turns_run_nothing_twice(start, queue, admin, tmp_path):
    start(lease_s="20")
    jobs = faults.app.enqueue_many(faults.leave_a_mark.job(str(tmp_path), n) for n in range(4000))
    last = 0
    while last < len(jobs):
        end_sessions(admin, keep=queue)
        goal = min(last + 150, len(jobs))
        last = eventually(lambda: (n := succeeded(queue)[1]) >= goal and n, within_s=15)  # noqa: B023
    assert succeeded(queue) == (len(jobs), len(jobs))
    assert {(tmp_path / str(n)).read_bytes() for n in range(len(jobs))} == {b"x"}


@pytest.mark.fault(31)
@pytest.mark.parametrize("beyond_s", exact(8.0, 0.0))
def test_a_worker_stops_within_its_grace_when_the_database_is_silent(start, database_url, tmp_path, beyond_s):
    with Proxy(database_url, tmp_path) as proxy:
        worker = start(url=proxy.url, grace_s="6")
        faults.clean_up.enqueue(str(tmp_path / "out"))
        eventually((tmp_path / "out.started").exists, within_s=20)
        proxy.silence()
        tree = worker.tree()
        assert worker.stop(within_s=6 + beyond_s) == 0
        assert (tmp_path / "out").read_text() == "cleaned up"
        assert not any(alive(pid) for pid in tree)


@pytest.mark.fault(37)
def test_a_worker_that_gets_no_connection_waits_for_one(start, database_url, admin):
    role = sql.Identifier(f"limited_{uuid4().hex[:8]}")
    admin.execute(sql.SQL("create role {} login in role outlive_worker").format(role))
    try:
        worker = start(url=make_conninfo(database_url, user=role.as_string().strip('"')))
        assert faults.add.enqueue(1, 1).result(timeout=20) == 2
        admin.execute(sql.SQL("alter role {} connection limit 0").format(role))
        end_sessions(admin)
        job = faults.add.enqueue(2, 2)
        worker.says("too many connections")
        assert worker.process.poll() is None
        admin.execute(sql.SQL("alter role {} connection limit -1").format(role))
        assert job.result(timeout=20) == 4
        worker.stop()
    finally:
        admin.execute(sql.SQL("drop role {}").format(role))


@pytest.mark.fault(38)
def test_short_timeouts_of_the_database_stop_no_work(start, queue, admin):
    jobs = [*faults.app.enqueue_many(faults.warm.job(n) for n in range(300)), *some_of_each()]
    name = sql.Identifier(str(conninfo_to_dict(admin.info.dsn)["dbname"]))
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        admin.execute(sql.SQL("alter database {} set {} = '50ms'").format(name, sql.Identifier(setting)))
    # A session is idle before it can say that it needs no such limit, for longer than 50 ms on a busy machine.
    admin.execute(sql.SQL("alter database {} set idle_session_timeout = '500ms'").format(name))
    faults.app.connections.close()  # Its sessions are older than the settings.
    start()
    eventually(lambda: len(ends(queue, jobs)) >= len(jobs), within_s=30, what="all end")
    later = some_of_each()
    eventually(lambda: len(ends(queue, later)) >= len(later), within_s=30, what="all that came later end")
    assert ends(queue, [*jobs, *later]) == ["succeeded"] * 300 + ENDS + ENDS
    assert queue.execute("select from outlive.running union all select from outlive.waiting").fetchall() == []


CALM_S = 0.6
"""So long after its last job a worker looks only once a second."""


@pytest.mark.fault(41)
@pytest.mark.parametrize("within_s", exact(2.5, 1.3))
def test_a_worker_that_lost_its_listener_still_begins_at_once(start, queue, database_url, tmp_path, within_s):
    """Its tick finds the job after 1.2 s at most. It is no statement on the connection that is silent."""
    listeners: list[Link] = []

    def note(at: Boundary) -> None:
        if at.text.lower().startswith("listen"):
            listeners.append(at.link)

    with Proxy(database_url, tmp_path, at_boundary=note) as proxy:
        worker = start(url=proxy.url)
        for n in range(3):
            eventually(lambda: queue.execute("select 1 from outlive.sleepers").fetchone(), what="it sleeps")
            for link in listeners:
                link.silence()
            idle_since = time.monotonic()
            eventually(lambda: time.monotonic() - idle_since > CALM_S, what="it looks only now and then")  # noqa: B023
            [(enqueued_at,)] = queue.execute("select clock_timestamp()")
            job = faults.add.enqueue(n, 1)
            assert job.result(timeout=20) == n + 1
            began_at = attempts(queue, job)[0].started_at
            assert began_at
            assert (began_at - enqueued_at).total_seconds() < within_s
        worker.stop()
    assert listeners


@pytest.mark.fault(44)
def test_arguments_as_large_as_they_may_be_arrive_and_larger_ones_are_refused_with_a_sentence(start):
    with pytest.raises(outlive.BadArguments, match="bytes"):
        faults.length_of.enqueue("x" * 10_000_000)
    start()
    assert faults.length_of.enqueue("x" * 1_000_000).result(timeout=20) == 1_000_000


# Reloading, and what a fork must not share


def test_sighup_brings_new_code_and_lets_old_jobs_finish(start, changing, tmp_path):
    name, path = changing.__name__, Path(changing.__file__)
    worker = start(target=f"{name}:app", folder=tmp_path, slots=2)
    old = worker.zygote()
    waiting = changing.wait.enqueue(str(tmp_path / "go"))
    eventually((tmp_path / "go.started").exists, within_s=20)
    assert changing.version.enqueue().result(timeout=20) == 1
    path.write_text("import no_such_module\n")
    worker.send(signal.SIGHUP)
    worker.says("goes on with the old app", within_s=20)
    assert changing.version.enqueue().result(timeout=20) == 1
    path.write_text(source(version=2))
    worker.send(signal.SIGHUP)
    worker.says("the app was reloaded: 2 tasks", within_s=20)
    assert changing.version.enqueue().result(timeout=20) == 2
    (tmp_path / "go").touch()
    assert waiting.result(timeout=20) == 1
    eventually(lambda: not alive(old), what="the old zygote and its children go")
    assert worker.stop() == 0


SLOW = """
import os, pathlib, time
here = pathlib.Path(__file__).parent
try:
    os.close(os.open(here / "first", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    while not (here / "go on").exists():
        time.sleep(0.01)
"""


def test_a_reload_that_overtakes_a_revival_leaves_one_zygote(start, changing, tmp_path):
    name, path = changing.__name__, Path(changing.__file__)
    worker = start(target=f"{name}:app", folder=tmp_path, slots=1)
    path.write_text(SLOW + source(version=2))
    os.kill(worker.zygote(), signal.SIGKILL)
    eventually((tmp_path / "first").exists, within_s=20, what="the new zygote imports")
    worker.send(signal.SIGHUP)
    worker.says("the app was reloaded", within_s=20)
    (tmp_path / "go on").touch()
    assert changing.version.enqueue().result(timeout=20) == 2
    eventually(lambda: len(worker.zygotes()) == 1, what="only one is left")
    assert changing.version.enqueue().result(timeout=20) == 2
    assert worker.stop() == 0


def test_threads_of_the_app_are_named_in_a_warning(start, tmp_path):
    (tmp_path / "threaded.py").write_text(
        "import outlive, threading, time\napp = outlive.App()\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    worker = start(target="threaded:app", folder=tmp_path)
    worker.says("the app started threads at import")


def test_jobs_share_neither_numbers_nor_sockets_and_a_stopped_worker_leaves_no_process(start):
    worker = start()
    assert len({faults.draw.enqueue().result(timeout=20) for _ in range(5)}) == 5
    # For a moment a parent has the socket of the child that it makes next.
    eventually(lambda: len(faults.open_sockets.enqueue().result(timeout=20)) == 3)
    faults.warm.enqueue().result(timeout=20)
    tree = worker.tree()
    assert worker.stop() == 0
    assert not any(alive(pid) for pid in tree)


def test_an_idle_worker_hardly_asks_the_database(start, database_url, tmp_path):
    with Proxy(database_url, tmp_path) as proxy:
        start(url=proxy.url)
        eventually(lambda: proxy.boundaries > 30)  # It has registered, and looked around.
        before, since = proxy.boundaries, time.monotonic()
        eventually(lambda: time.monotonic() > since + 2)
        # Some eight a second for looking around, and its last polls; one that can't sleep asks a hundred times more.
        assert proxy.boundaries - before < 150
