"""Waiting for results: clients are woken by a notification, whatever happens to their sessions, threads and loops."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import outlive
from outlive import embedded, migrate, store
from outlive.client import connections, waiting
from outlive.states import Outcome
from tests.client.example import add, app_at
from tests.client.test_processes import run_forking
from tests.driving.databases import end_sessions
from tests.driving.making import Queue
from tests.waiting import aeventually, eventually

Query = Callable[..., list[tuple[Any, ...]]]
OTHERS = """select pid from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
LISTENING = f"{OTHERS} and state = 'idle' and query like '%outlive.awaited%'"
"""The session of the thread that waits: after a look it only listens."""


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first look, right after the wish is written: from then on only a notification can wake a client."""
    for pause in ("FIRST_LOOK_S", "LAST_LOOK_S"):
        monkeypatch.setattr(waiting, pause, 600.0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def waiters() -> int:
    return sum(thread.name == "outlive-waiting" for thread in threading.enumerate())


def awaited(queue: Queue, jobs: int = 1) -> None:
    eventually(lambda: queue.count("awaited") == jobs, what=f"{jobs} jobs are awaited")


def succeed(queue: Queue, *jobs: outlive.Job[Any]) -> None:
    for job in jobs:
        queue.run_job(job.id, Outcome.SUCCEEDED, result=b"42")


def start_waiting(
    threads: ThreadPoolExecutor, queue: Queue, kind: str = "sync"
) -> tuple[outlive.Job[int], Future[int]]:
    """A job, and a thread or an event loop that waits for it."""
    before = queue.count("awaited")
    job = add.enqueue(1)
    waits = threads.submit(job.result, 20) if kind == "sync" else threads.submit(in_a_loop, job)
    awaited(queue, before + 1)
    return job, waits


def in_a_loop(job: outlive.Job[int], timeout: float = 20) -> int:
    async def use() -> int:
        try:
            return await job.aresult(timeout)
        finally:
            await job._app.runner.connections.aclose()

    return asyncio.run(use())


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.usefixtures("no_looks")
def test_a_client_is_woken_when_its_job_ends(app, queue, threads, kind):
    job, waits = start_waiting(threads, queue, kind)
    succeed(queue, job)
    assert waits.result(10) == 42
    assert queue.count("awaited") == 0


@pytest.mark.usefixtures("no_looks")
def test_all_that_wait_for_one_job_are_woken(app, queue, threads):
    job, first = start_waiting(threads, queue)
    others = [threads.submit(job.result, 20), threads.submit(in_a_loop, job)]
    eventually(lambda: len(app.connections.waiting._by_job[job.id]) == 3)
    succeed(queue, job)
    assert [one.result(10) for one in (first, *others)] == [42, 42, 42]


@pytest.mark.usefixtures("no_looks")
def test_many_callers_share_one_thread_and_one_listening_session(app, queue, query, threads):
    jobs = [add.enqueue(n) for n in range(20)]
    waits = [threads.submit(job.result, 20) for job in jobs]
    awaited(queue, 20)
    assert waiters() == 1
    app.connections.close()
    eventually(lambda: len(query(OTHERS)) == 1, what="only the session that listens is left")
    for job, result in zip(jobs, waits, strict=True):
        succeed(queue, job)
        assert result.result(10) == 42
    eventually(lambda: waiters() == 0, what="the thread ends when no caller waits")


def test_the_session_listens_no_more_when_no_caller_waits(app, queue, query, threads):
    job, waits = start_waiting(threads, queue)
    succeed(queue, job)
    waits.result(10)
    eventually(lambda: waiters() == 0)
    channels = app.connections.within(lambda one: one.execute("select pg_listening_channels()").fetchall())
    assert channels == []
    assert len(query(OTHERS)) <= 2, "its session is used again"


def test_an_end_that_notified_no_one_is_found_by_a_look(app, queue, threads):
    job, waits = start_waiting(threads, queue)
    with queue.transaction():
        queue.execute("delete from outlive.awaited")
        succeed(queue, job)
    assert waits.result(10) == 42
    eventually(lambda: queue.count("awaited") == 0, what="no wish is left of a look at the wrong moment")


@pytest.mark.usefixtures("no_looks")
def test_a_false_notification_ends_no_wait(app, queue, threads):
    job, waits = start_waiting(threads, queue)
    for payload in ("", "nonsense", str(job.id), f"{job.id},{job.id}"):
        queue.execute("select pg_notify('outlive_ended', %s)", [payload])
    other, others = start_waiting(threads, queue)
    succeed(queue, other)
    assert others.result(10) == 42
    assert not waits.done()
    succeed(queue, job)
    assert waits.result(10) == 42


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.usefixtures("no_looks")
def test_a_session_that_an_operator_ends_is_replaced_however_often(app, queue, query, threads, kind, monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE_S", 2.0)
    job, waits = start_waiting(threads, queue, kind)
    for _ in range(2):
        sessions, began = query(OTHERS), time.monotonic()
        queue.execute("delete from outlive.awaited")  # As a crash of the server does.
        end_sessions(queue, keep=queue)
        eventually(lambda: not set(sessions) & set(query(OTHERS)), what="the sessions are gone")  # noqa: B023
        awaited(queue)
        eventually(lambda: time.monotonic() > began + 2.0)  # noqa: B023
    succeed(queue, job)
    assert waits.result(10) == 42


@pytest.mark.usefixtures("no_looks")
def test_a_restart_of_the_server_is_survived(server, threads):
    url = embedded.ensure(server, settings={"fsync": "off"})
    with Queue.at(url) as connection:
        migrate.migrate(connection)
        app = app_at(url)
        job, waits = start_waiting(threads, connection)
    for _ in range(2):
        assert embedded.release(server, wait_s=10)
        stopped = time.monotonic()
        eventually(lambda: time.monotonic() > stopped + 1)  # noqa: B023
        assert embedded.ensure(server, settings={"fsync": "off"}) == url
    with Queue.at(url) as connection:
        eventually(lambda: connection.values(LISTENING), what="the client is back")
        succeed(connection, job)
        assert waits.result(10) == 42
    app.connections.close()


def test_a_server_that_stays_away_is_an_error_for_all_that_wait(server, threads):
    url = embedded.ensure(server, settings={"fsync": "off"})
    with Queue.at(url) as connection:
        migrate.migrate(connection)
        app = app_at(url)
        waits = [start_waiting(threads, connection, kind)[1] for kind in ("sync", "async")]
    assert embedded.release(server, wait_s=10)
    for one in waits:
        with pytest.raises(outlive.DatabaseUnreachable):
            one.result(30)
    assert waiters() == 0
    app.connections.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.usefixtures("no_looks")
def test_a_wait_that_times_out_looks_once_more_and_leaves_nothing(app, queue, threads, query, kind):
    ended, unfinished = add.enqueue(1), add.enqueue(2)
    results = [
        threads.submit(job.result, 2) if kind == "sync" else threads.submit(in_a_loop, job, 2)
        for job in (ended, unfinished)
    ]
    awaited(queue, 2)
    with queue.transaction():
        queue.execute("delete from outlive.awaited")
        succeed(queue, ended)
    assert results[0].result(10) == 42
    with pytest.raises(TimeoutError, match=f"job {unfinished.id} did not finish within 2 s"):
        results[1].result(10)
    app.connections.close()
    eventually(lambda: (waiters(), query(OTHERS)) == (0, []), what="neither thread nor session is left")


@pytest.mark.parametrize("way", ["cancel", "timeout"])
def test_a_cancelled_task_stops_waiting_without_a_trace(app, queue, query, caplog, way):
    job = add.enqueue(1)

    async def use() -> None:
        waits = asyncio.create_task(job.aresult())
        await aeventually(lambda: queue.count("awaited") == 1)
        if way == "cancel":
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await waits
        await app.connections.aclose()

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        asyncio.run(use(), debug=True)
    app.connections.close()
    eventually(lambda: (waiters(), query(OTHERS)) == (0, []), what="neither thread nor session is left")
    assert "destroyed" not in caplog.text


@pytest.mark.usefixtures("no_looks")
def test_an_event_loop_that_is_closed_too_early_disturbs_no_other(
    app: outlive.App, queue: Queue, threads: ThreadPoolExecutor
) -> None:
    job, other = add.enqueue(1), add.enqueue(2)
    loop = asyncio.new_event_loop()
    left_behind = loop.create_task(job.aresult())
    loop.call_later(0.05, loop.stop)
    while queue.count("awaited") == 0:
        loop.run_forever()
        loop.call_later(0.01, loop.stop)
    loop.close()
    waits = [threads.submit(one.result, 20) for one in (job, other)]
    awaited(queue, 2)
    succeed(queue, job, other)
    assert [one.result(10) for one in waits] == [42, 42]
    left_behind._log_destroy_pending = False  # type: ignore[attr-defined]  # The test wants it so.


def test_a_process_that_forks_while_it_waits_lends_nothing_to_its_child(app, database_url):
    run_forking("while_it_waits", database_url)


def test_where_no_thread_can_start_a_client_polls(app, queue):
    job = add.enqueue(1)
    with ThreadPoolExecutor(1) as ending:
        ending.submit(lambda: None).result()
        before = threading.stack_size(1 << 45)
        try:
            ended = ending.submit(eventually, lambda: queue.run(store.cancel([job.id])) and None, within_s=0.1)
            with pytest.raises(outlive.JobFailed):
                job.result(timeout=30)
        finally:
            threading.stack_size(before)
        with contextlib.suppress(AssertionError):
            ended.result()
    assert (waiters(), queue.count("awaited")) == (0, 0)


def test_a_signal_handler_that_waits_while_its_thread_has_the_lock_keeps_its_timeout(app):
    job = add.enqueue(1)
    with app.connections.waiting._lock, pytest.raises(TimeoutError):
        job.result(timeout=0.5)


def test_a_job_that_is_pruned_while_a_client_waits_is_not_found(app, queue, threads):
    job, waits = start_waiting(threads, queue)
    with queue.transaction():
        succeed(queue, job)
        queue.run(store.prune_jobs([job.id]))
    with pytest.raises(outlive.JobNotFound, match="it was pruned"):
        waits.result(10)
