"""Locks, limits and modes that other clients leave on the database delay only the jobs that need them."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outlive import store
from outlive.model import SourceLimits
from outlive.states import Outcome, State
from tests import faults
from tests.driving.databases import end_sessions
from tests.driving.jobs import attempts, begun, finished
from tests.driving.workers import alive
from tests.waiting import eventually


@pytest.fixture
def stranger(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of another client, whose transaction stays open."""
    with psycopg.connect(database_url, application_name="stranger") as connection:
        yield connection
        connection.rollback()


def run_others() -> None:
    """Run some other jobs, which takes several claims and ends."""
    for n in range(3):
        assert faults.add.enqueue(n, n).result(timeout=8) == 2 * n


@pytest.mark.fault(55)
def test_an_uncommitted_cancel_and_a_locked_dedupe_key_delay_only_the_ends_of_their_jobs(
    start, queue, stranger, tmp_path
):
    start(slots=3)
    cancelled = faults.wait_for.enqueue(str(tmp_path / "go"))
    keyed = faults.wait_for.using(dedupe_key="mine").enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go", times=2)
    stranger.execute("select outlive.cancel(%s)", [[cancelled.id]])
    stranger.execute("select from outlive.dedupe_keys for update")
    (tmp_path / "go").touch()
    run_others()
    assert queue.value("select count(*) from outlive.running") == 2
    stranger.rollback()
    for job in (cancelled, keyed):
        assert finished(job, within_s=8) is State.SUCCEEDED
        assert [one.outcome for one in attempts(queue, job)] == [Outcome.SUCCEEDED]


@pytest.mark.long
@pytest.mark.fault(55)
def test_a_locked_source_delays_only_its_own_jobs_and_hears_later_how_they_went(
    start, queue, stranger, admin, tmp_path
):
    start(slots=2)
    job = faults.wait_for.using(source="shop").enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    queue.run(store.set_source("shop", {"rate_limit_per_minute": 60_000}))  # Without a limit it is not asked.
    stranger.execute("select from outlive.sources where name = 'shop' for update")
    (tmp_path / "go").touch()
    run_others()
    assert finished(job, within_s=8) is State.SUCCEEDED
    waiting = faults.add.using(source="shop").enqueue(1, 1)
    end_sessions(admin, keep=queue)
    run_others()
    assert waiting.status() is State.PENDING
    assert queue.values("select last_success_at from outlive.sources") == [None]
    stranger.rollback()
    assert waiting.result(timeout=8) == 2
    succeeded = "select last_success_at from outlive.sources"
    eventually(lambda: queue.value(succeeded), within_s=8, what="the source hears how it went")


@pytest.mark.fault(55)
def test_a_locked_batch_delays_only_the_end_that_would_cancel_a_job_of_it_and_no_goodbye(start, queue, stranger):
    failing = faults.raise_error.using(max_attempts=1).enqueue()
    with faults.app.batch("theirs") as batch:
        faults.add.using(after=[failing], on_failure="cancel", batch=batch).enqueue(1, 1)
    stranger.execute("select from outlive.batches for update")
    worker = start(slots=2)
    assert worker.says("can't be written yet")
    run_others()
    assert worker.stop() == 0
    assert queue.value("select state from outlive.workers") == "stopped"
    assert failing.status() is State.PENDING, "it is given back"
    stranger.rollback()
    start(slots=2)
    assert finished(failing, within_s=8) is State.FAILED
    assert batch.wait(timeout=8).cancelled == 1


LIMITED = "import outlive\napp = outlive.App()\nshop = app.source('shop', rate_limit_per_minute=600)\n"
LIMITED += "@app.task\ndef answer(): return 42\n"


@pytest.mark.fault(55)
def test_a_worker_starts_while_its_source_is_locked_and_the_limits_follow(start, queue, stranger, tmp_path):
    (tmp_path / "limited.py").write_text(LIMITED)
    queue.run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=7)]))
    stranger.execute("select from outlive.sources where name = 'shop' for update")
    worker = start(target="limited:app", folder=tmp_path)
    assert worker.says("another transaction has locked the source shop: what this app declares waits for it")
    job = queue.make("limited.answer", notify=True)
    eventually(lambda: queue.state_of(job) is State.SUCCEEDED, within_s=8)
    rate = "select rate_limit_per_minute from outlive.sources"
    assert queue.value(rate) == 7
    stranger.rollback()
    eventually(lambda: queue.value(rate) == 600, what="the limits of the app hold")


@pytest.mark.fault(55)
def test_a_jobs_call_that_waits_for_a_lock_delays_no_heartbeat_and_no_other_jobs_call_and_says_so(
    start, queue, stranger
):
    start(slots=4, heartbeat_s="0.1")
    faults.add.using(dedupe_key="theirs", connection=stranger).enqueue(1, 1)
    asking = [faults.ask_for.using(max_attempts=1).enqueue("theirs") for _ in range(2)]
    blocked = (
        "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'outlive'"
    )
    eventually(lambda: queue.value(blocked), within_s=20, what="both wait")
    seen = queue.value("select last_seen from outlive.workers")
    eventually(lambda: queue.value("select last_seen from outlive.workers") > seen, within_s=3)
    assert faults.spawn_more.enqueue(2).result(timeout=20)[-1] == 42
    assert [job.status() for job in asking] == [State.RUNNING] * 2, "these still wait for the lock"
    for job in asking:
        assert finished(job) is State.FAILED
        (only,) = attempts(queue, job)
        assert "DatabaseBusy: another transaction holds a lock" in (only.error or "")
        assert "lock timeout" in (only.error or "")


# Sessions


@pytest.mark.fault(53)
def test_a_worker_works_again_soon_after_a_spell_of_read_only(start, queue, admin):
    worker = start(slots=2, log_level="debug")
    run_others()
    name = queue.info.dbname
    admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    backend = "select backend_pid from outlive.liveness where worker not in (select worker from outlive.missing_locks)"
    (before,) = queue.values(backend)
    end_sessions(admin, keep=queue)
    showing = eventually(
        lambda: [pid for pid in queue.values(backend) if pid != before],
        within_s=8,
        what="it shows life in another session, though it can't work",
    )
    eventually(lambda: worker.log().count("read-only transaction") >= 8, within_s=30, what="turns and heartbeats fail")
    admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
    job = faults.add.enqueue(1, 1)
    assert job.result(timeout=8) == 2
    seen = queue.value("select last_seen from outlive.workers")
    eventually(lambda: queue.value("select last_seen from outlive.workers") >= seen, within_s=8)
    assert queue.values(backend) == showing


@pytest.mark.fault(66)
def test_a_lease_that_expires_while_an_end_waits_for_the_database_costs_its_job_nothing(start, queue, admin, tmp_path):
    """A reaper comes first when the spell is over, and the end is refused."""
    worker, name = start(slots=2), queue.info.dbname
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    (child,) = begun(tmp_path / "go")
    admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    end_sessions(admin, keep=queue)
    worker.says("read-only transaction", within_s=20)
    (tmp_path / "go").touch()
    eventually(lambda: not alive(child), what="its child has ended the job")
    queue.execute("update outlive.running set lease_until = '2000-01-01Z'")
    assert len(queue.run(store.expire())) == 1
    assert queue.counters(job.id) == (0, 0, 1)
    queue.execute("update outlive.waiting set ready_at = ready_at + interval '1 hour'")
    admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
    eventually(lambda: queue.counters(job.id) == (0, 0, 0), within_s=20)
    assert [one.outcome for one in attempts(queue, job)] == [Outcome.LOST]


def test_a_worker_that_starts_in_a_spell_of_read_only_starts_after_it(start, queue, admin):
    name = queue.info.dbname
    admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    worker = start(wait=False)
    worker.says("read-only transaction; trying again", within_s=20)
    admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
    worker.started()
    run_others()


def test_a_lock_that_stays_is_one_line_of_the_log_and_not_one_for_each_try(start, queue, stranger):
    worker = start(log_level="debug")
    run_others()
    stranger.execute("lock table outlive.waiting in access exclusive mode")
    line = "claim: canceling statement due to lock timeout; trying again in"
    eventually(lambda: worker.log().count(line) > 4, within_s=20)
    stranger.rollback()
    run_others()
    [warned] = [one for one in worker.log().splitlines() if line in one and "WARNING" in one]
    assert warned.endswith("trying again in 0.1 s"), "without the statement"
    assert "reconciled: 0 ends" not in worker.log()


# Ends


@pytest.mark.long
@pytest.mark.fault(61)
def test_a_huge_end_under_a_short_statement_timeout_is_written_and_delays_no_other(start, queue, admin):
    admin.execute(f"alter database {queue.info.dbname} set statement_timeout = '200ms'".encode())
    start(slots=2)
    flood = faults.spawn_many.enqueue(20_000)
    while flood.status() is not State.SUCCEEDED:
        run_others()
        assert flood.status() in (State.PENDING, State.RUNNING, State.SUCCEEDED)
    assert queue.value("select count(*) from outlive.waiting where queue = 'later'") == 20_000
    assert [one.outcome for one in attempts(queue, flood)] == [Outcome.SUCCEEDED]


@pytest.mark.fault(61)
def test_an_end_that_fails_again_and_again_becomes_a_failure_that_says_why(start, queue):
    queue.execute(
        "create function no() returns trigger language plpgsql as $$ begin raise 'no room for records'; end $$;"
        "create trigger no before insert on outlive.records execute function no()"
    )
    start(slots=2)
    job = faults.find.enqueue("a")
    run_others()
    assert finished(job) is State.FAILED
    (only,) = attempts(queue, job)
    assert "no room for records" in (only.error or "")
