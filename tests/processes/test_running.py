"""One worker, one job at a time: how jobs run, end, and leave evidence."""

import signal

import pytest

from outlive.states import Outcome, State
from tests import faults
from tests.driving.jobs import attempts, begun, finished
from tests.waiting import eventually


def test_a_job_that_kills_its_process_is_quarantined_after_three_kills_with_the_cause(start, queue):
    start()
    causes = {
        faults.die_by.enqueue("SIGSEGV"): ("SIGSEGV", None),
        faults.die_by.enqueue("SIGKILL"): ("SIGKILL", None),
        faults.die_by.enqueue("SIGABRT"): ("SIGABRT", None),
        faults.exit_with.enqueue(3): (None, 3),
        faults.exit_with.enqueue(0): (None, 0),
    }
    healthy = [faults.add.enqueue(n, n) for n in range(20)]
    for killer, cause in causes.items():
        assert finished(killer) is State.QUARANTINED
        found = attempts(queue, killer)
        assert [(one.outcome, one.signal, one.exit_code) for one in found] == [(Outcome.CRASHED, *cause)] * 3
        assert all(one.peak_memory_bytes and one.cpu_s is not None for one in found)
    assert [job.result(timeout=30) for job in healthy] == [2 * n for n in range(20)]


def test_each_other_end_is_a_failure_with_its_outcome_and_error(start, queue):
    start(slots=4)
    ends = {
        faults.raise_error.enqueue("not this"): (Outcome.FAILED, "ValueError: not this"),
        faults.leave.enqueue(7): (Outcome.FAILED, "SystemExit: 7"),
        faults.raise_unprintable.enqueue(): (Outcome.FAILED, "Unprintable"),
        faults.raise_unreadable.enqueue(): (Outcome.FAILED, "Unreadable"),
        faults.raise_huge.enqueue(): (Outcome.FAILED, ""),
        faults.raise_memory_error.enqueue(): (Outcome.OUT_OF_MEMORY, ""),
        faults.stop_itself.using(timeout=0.5).enqueue(): (Outcome.TIMED_OUT, ""),
    }
    silent = faults.raise_error.enqueue("")
    for job, (outcome, error) in ends.items():
        assert finished(job) is State.FAILED
        found = attempts(queue, job)[0]
        assert found.outcome is outcome
        assert error in (found.error or "")
        assert len(found.error or "") < 10_000
    assert "raise_error" in (attempts(queue, next(iter(ends)))[0].stack or "")
    assert finished(silent) is State.FAILED
    assert attempts(queue, silent)[0].error == "ValueError", "no colon if nothing follows"


def test_jobs_use_up_descriptors_enqueue_others_and_wait_for_them_at_no_cost_to_others(start, queue):
    start(slots=3)
    assert faults.exhaust_descriptors.enqueue().result(timeout=30) > 100
    *ids, answer = faults.spawn_more.enqueue(3).result(timeout=30)
    assert (len(ids), answer) == (3, 42)
    assert faults.gather_more.enqueue(3).result(timeout=30) == [0, 2, 4, 0, 2, 4]
    eventually(lambda: queue.execute("select from outlive.awaited").fetchall() == [], what="no wish is left")


def test_a_program_that_a_job_starts_has_no_open_file_of_outlive(start):
    start()
    assert [faults.descriptors_of_a_program.enqueue().result(timeout=30) for _ in range(2)] == [[0, 1, 2, 3]] * 2


def test_a_job_that_kills_the_zygote_harms_no_job(start, queue, tmp_path):
    worker = start()
    neighbour = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    killer = faults.kill_zygote.enqueue()
    worker.says("the zygote died", within_s=20)
    assert faults.add.enqueue(2, 2).result(timeout=30) == 4
    assert killer.status() is State.RUNNING
    (tmp_path / "go").touch()
    assert neighbour.result(timeout=20) == "seen"
    assert [one.outcome for one in attempts(queue, neighbour)] == [Outcome.SUCCEEDED]
    killer.cancel()
    assert finished(killer) is State.CANCELLED
    eventually(lambda: not worker.orphaned_parents(), what="the parents of the dead zygote go with its last job")


@pytest.mark.fault(67)
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_that_kills_every_zygote_is_lost_in_the_end(start, queue):
    start(slots=3)
    killer = faults.kill_every_zygote.using(max_losses=1).enqueue()
    assert finished(killer, State.QUARANTINED, within_s=150) is State.QUARANTINED
    (lost,) = attempts(queue, killer)
    assert (lost.outcome, lost.error) == (Outcome.LOST, "10 zygotes died in a short time while it ran")
    assert faults.add.enqueue(2, 2).result(timeout=30) == 4


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.long) for one in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_a_worker_whose_standard_streams_are_closed_runs_jobs(start, closed):
    worker = start(slots=1, wait=False, within=("sh", "-c", f'exec "$@" {closed}', "sh"))
    assert faults.add.enqueue(20, 22).result(timeout=30) == 42
    assert worker.stop() == 0


SLOWLY_IMPORTED = """
import pathlib, time
import outlive
here = pathlib.Path(__file__).parent
(here / "importing").touch()
while not (here / "go").exists():
    time.sleep(0.01)
app = outlive.App()

@app.task
def version():
    return 1
"""


def test_a_reload_that_is_asked_for_during_the_first_import_comes_after_it(start, queue, tmp_path):
    source = tmp_path / "slowly_imported.py"
    source.write_text(SLOWLY_IMPORTED)
    worker = start(slots=1, target="slowly_imported:app", folder=tmp_path, wait=False)
    eventually((tmp_path / "importing").exists, within_s=20)
    source.write_text(SLOWLY_IMPORTED.replace("return 1", "return 22"))
    worker.send(signal.SIGHUP)
    (tmp_path / "go").touch()
    worker.started()
    worker.says("the app was reloaded")
    queue.make("slowly_imported.version", notify=True)
    results = "select result::text from outlive.attempts"
    eventually(lambda: queue.execute(results).fetchall() == [("22",)], within_s=20)
