"""One app in many threads, forked processes and event loops: none disturbs another."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.client.example import add
from tests.driving.making import Queue
from tests.driving.workers import ROOT
from tests.waiting import eventually

Query = Callable[..., list[tuple[Any, ...]]]
OTHERS = """select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
BLOCKED = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def test_eight_threads_enqueue_through_one_app(app, query):
    with ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(add.enqueue, range(800)))
    assert len({job.id for job in jobs}) == 800
    assert query("select count(*), count(distinct args->>'a') from outlive.jobs") == [(800, 800)]
    assert query(OTHERS)[0][0] <= 8


def test_no_more_connections_are_kept_than_a_few(app, query):
    together = threading.Barrier(12)
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda _: app.connections.within(lambda _: together.wait(30)), range(12)))
    eventually(lambda: query(OTHERS)[0][0] <= 8)


def run_forking(way: str, url: str) -> str:
    """Run the program that forks in this way to its end; returns what it said."""
    program = subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "tests.client.forking", way, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = program.communicate(timeout=60)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # Children too, of a program that did not end.
    assert program.returncode == 0, said
    return said


@pytest.mark.parametrize("way", ["plainly", "with_the_lock_taken", "within_a_loop", "amid_threads", "as_servers_do"])
def test_a_process_may_fork_after_it_has_used_its_app(app, query, database_url, way):
    said = run_forking(way, database_url)
    assert "Error" not in said
    jobs = query(
        "select (args->>'a')::int as a, count(*)::int from outlive.jobs where args->>'a' <> '1' group by 1 order by 1"
    )
    expected = {
        "plainly": [(0, 2), (100, 1)],
        "with_the_lock_taken": [(0, 1), (100, 1)],
        "within_a_loop": [(0, 2), (100, 1)],
        "amid_threads": [(0, 2), *((n, 2) for n in range(2, 6)), (100, 1)],
        "as_servers_do": [(0, 1), *((n, 1) for n in range(2, 30)), (100, 2)],
    }
    assert jobs == expected[way]


def test_connections_of_an_event_loop_that_has_ended_are_not_kept(app, query):
    app.connections.close()
    for n in range(3):
        asyncio.run(add.aenqueue(n))
    gc.collect()
    eventually(lambda: query(OTHERS) == [(0,)])


def test_the_session_of_an_event_loop_that_has_ended_ends_before_its_garbage_is_collected(app, query):
    app.connections.close()
    gc.disable()
    try:
        asyncio.run(add.aenqueue(1))
        app.connections.close()
        eventually(lambda: query(OTHERS) == [(0,)])
    finally:
        gc.enable()


def test_a_thousand_tasks_of_one_event_loop_share_a_few_connections(app, queue):
    """They wait without a deadline: a statement that is cut off at one opens a socket for a moment, to be cancelled."""
    app.connections.close()
    seen: list[int] = []

    async def use() -> None:
        before = open_sockets()
        jobs = await app.aenqueue_many(add.job(n) for n in range(1000))
        waits = [asyncio.create_task(job.aresult()) for job in jobs]
        while queue.count("awaited") < 1000:
            seen.append(open_sockets() - before)
            await asyncio.wait(waits, timeout=0.01)
        for one in waits:
            one.cancel()
        await asyncio.wait(waits)
        await app.connections.aclose()

    asyncio.run(use())
    assert 1 < max(seen) <= 9, "eight, and the one that listens"


def open_sockets() -> int:
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


def test_a_task_that_holds_a_lock_is_not_stuck_behind_those_that_wait_for_it(app, query, connect):
    async def use() -> None:
        job = await add.aenqueue(0)
        with connect() as mine:
            with mine.transaction():
                add.using(connection=mine, dedupe_key="key").enqueue(1)
                others = [asyncio.create_task(add.using(dedupe_key="key").aenqueue(2)) for _ in range(12)]
                while query(BLOCKED) != [(8,)]:
                    await asyncio.wait(others, timeout=0.01)
                assert await asyncio.wait_for(job.astatus(), 30) == "pending"
            await asyncio.gather(*others)
        await app.connections.aclose()

    asyncio.run(use())


def test_a_connection_that_is_left_within_a_transaction_is_not_used_again(app, query):
    def work(queue: Queue) -> None:
        queue.execute("begin")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.connections.within(work)
    add.enqueue(1)
    assert query("select count(*) from outlive.jobs") == [(1,)]


def test_a_task_cancelled_while_it_enqueues_leaves_a_clean_connection(app, query, connect):
    async def use() -> None:
        with connect() as locker, locker.transaction():
            locker.execute("lock table outlive.jobs in access exclusive mode")
            task = asyncio.create_task(add.aenqueue(1))
            while query(BLOCKED) != [(1,)]:
                await asyncio.wait([task], timeout=0.01)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await asyncio.wait_for(add.aenqueue(2), 10)
        await app.connections.aclose()

    asyncio.run(use())
    assert query("select args->>'a' from outlive.jobs") == [("2",)]
