"""Locks and rows that other clients leave in the database, and jobs that spoil their process, don't stop a worker."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outlive.states import Outcome, State
from tests import faults
from tests.driving.jobs import attempts, finished
from tests.waiting import eventually


@pytest.fixture
def stranger(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A client that has enqueued a job in a transaction, and leaves the transaction open."""
    with psycopg.connect(database_url) as connection:
        faults.add.using(dedupe_key="theirs", connection=connection).enqueue(1, 1)
        yield connection
        connection.rollback()


def test_an_end_that_waits_for_another_transaction_is_kept_and_holds_up_no_other(start, queue, stranger):
    worker = start(slots=2, lease_s="3", renew_s="0.3")
    bringing = faults.spawn.enqueue("theirs")
    worker.says("can't be written yet", within_s=20)
    lease = queue.value("select lease_until from outlive.running")
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    eventually(lambda: queue.value("select lease_until from outlive.running") > lease, what="it is renewed")
    stranger.rollback()
    assert finished(bringing) is State.SUCCEEDED
    assert [one.outcome for one in attempts(queue, bringing)] == [Outcome.SUCCEEDED]
    eventually(lambda: queue.value("select count(*) from outlive.attempts") == 3, what="what it asked for runs")


def test_a_worker_that_stops_gives_back_jobs_whose_ends_it_could_not_write(start, queue, stranger):
    worker = start()
    bringing = faults.spawn.enqueue("theirs")
    worker.says("can't be written yet", within_s=20)
    assert worker.stop() == 0
    assert bringing.status() is State.PENDING
    assert [one.outcome for one in attempts(queue, bringing)] == [Outcome.RELEASED]


@pytest.mark.fault(54)
def test_options_rows_and_records_that_cannot_be_read_or_written_cost_their_job_and_no_other(start, queue):
    deep = '{"x": ' + "[" * 3000 + "]" * 3000 + "}"
    bad, deep_one, old, *good = [faults.add.enqueue(n, n) for n in range(7)]
    for job, options in ((bad, '{"timeout_s": "10m"}'), (deep_one, deep)):
        queue.execute("update outlive.jobs set options = %s where id = %s", [options, job.id])
    queue.execute("update outlive.waiting set ready_at = '0044-03-15 BC' where id = %s", [old.id])
    start()
    assert [job.result(timeout=20) for job in good] == [6, 8, 10, 12]
    for job, error in ((bad, "its options can't be read"), (deep_one, ""), (old, "its row can't be read")):
        assert finished(job) is State.FAILED
        (only,) = attempts(queue, job)
        assert error in (only.error or "")
    spoiling = faults.spoil_a_record.enqueue()
    assert finished(spoiling) is State.FAILED
    (only,) = attempts(queue, spoiling)
    assert (only.outcome, only.signal) == (Outcome.FAILED, None), "no crash"
    assert "object" in (only.error or "")
    assert faults.add.enqueue(4, 4).result(timeout=20) == 8


@pytest.mark.fault(54)
def test_texts_are_utf8_whatever_the_environment_asks_for(start, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    faults.app.connections.close()
    start()
    said = ["käse", "5 €", "плов", "ok"]
    jobs = [faults.echo.enqueue(text) for text in said]
    assert [job.result(timeout=20) for job in jobs] == said


def test_large_arguments_reach_their_jobs_and_not_the_supervisors_memory(start, queue):
    worker = start(slots=4)
    query = b"select outlive.enqueue(%s, json_build_object('text', repeat('x', %s)), max_args_bytes => 2147483647)"
    for task in (faults.length_of.name, faults.length_of_warm.name):
        for size in (30_000_000, 30_000_000, 2_000_000, 100):
            queue.execute(query, [task, size])
    done = "select count(*) from outlive.attempts where outcome = 'succeeded' and result::text::int > 0"
    eventually(lambda: queue.value(done) == 8, within_s=60, what="all have got their arguments")
    assert worker.peak_bytes() < 150_000 * 1024


def test_a_thread_that_a_job_has_left_takes_nothing_from_the_next(start, tmp_path):
    start(slots=1)
    first = faults.leave_a_thread.enqueue(str(tmp_path / "go"))
    pid = first.result(timeout=20)
    (tmp_path / "go").touch()
    eventually((tmp_path / "go.asks").exists)
    assert faults.leave_a_thread.enqueue(str(tmp_path / "go")).result(timeout=20) == pid


def test_a_task_that_is_gone_after_a_reload_holds_up_no_other(start, queue, changing, tmp_path):
    name, source = changing.__name__, tmp_path / f"{changing.__name__}.py"
    text = source.read_text().replace("(recycle_after=100)", "")
    source.write_text(text)
    worker = start(target=f"{name}:app", folder=tmp_path, slots=1)
    (parent,) = eventually(worker.parents)
    (tmp_path / "go").touch()
    assert changing.wait.enqueue(str(tmp_path / "go")).result(timeout=20) == 1

    def stopped(question: Callable[[], object]) -> Callable[[], object]:
        def asked() -> object:
            with contextlib.suppress(ProcessLookupError):  # The worker ends it when the app is reloaded.
                os.kill(parent, signal.SIGSTOP)  # There are no new children; the worker wakes it now and then.
            return question()

        return asked

    jobs = [changing.version.enqueue()]

    def one_waits_for_a_child() -> bool:
        if jobs[-1].status() is State.SUCCEEDED:  # There was a child for it.
            jobs.append(changing.version.enqueue())
        return all(jobs[-1].status() is State.RUNNING for _ in range(5))

    eventually(stopped(one_waits_for_a_child), within_s=20)
    source.write_text(text.replace("version", "another"))
    worker.send(signal.SIGHUP)
    eventually(stopped(lambda: "the app was reloaded" in worker.log()), within_s=20)
    with contextlib.suppress(ProcessLookupError):
        os.kill(parent, signal.SIGCONT)
    assert changing.wait.enqueue(str(tmp_path / "go")).result(timeout=20) == 1


def test_jobs_see_the_address_of_the_database_only_when_they_are_meant_to(start, database_url):
    """The queue answers them all the same."""
    worker = start()
    assert faults.seen_addresses.enqueue().result(timeout=20)[:2] == [None, None]
    worker.stop()
    start(jobs_see_database_url="true")
    seen = faults.seen_addresses.enqueue().result(timeout=20)
    assert seen[:2] == [database_url, database_url]
    assert seen[2] in ("pending", "running", "succeeded")
