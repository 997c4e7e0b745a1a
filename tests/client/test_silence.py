"""The database is silent for a while: no client opens more connections than it may, and no timeout is overstayed."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import outlive
from outlive.client import connections
from tests.client.example import add, app_at
from tests.proxy import Proxy
from tests.waiting import aeventually, eventually

TASKS = 200
LONG_S = 8.0
"""Far less than a client would wait without a timeout, and far more than a starved machine needs."""


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy
        proxy.heal()


@pytest.fixture
def app(proxy: Proxy) -> Iterator[outlive.App]:
    """An app whose connections go through the proxy."""
    app = app_at(proxy.url)
    yield app
    proxy.heal()
    app.connections.close()


def opened(proxy: Proxy) -> int:
    return len(proxy._links)


async def crowd(proxy: Proxy, during: Callable[[set[asyncio.Task[Any]]], Any]) -> list[Any]:
    """What becomes of many tasks that enqueue while the database is silent."""
    await add.aenqueue(0)
    before = opened(proxy)
    proxy.silence()
    tasks = {asyncio.create_task(add.aenqueue(n)) for n in range(TASKS)}
    await aeventually(lambda: opened(proxy) >= before + connections.PLACES - 1)
    await during(tasks)
    proxy.heal()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert opened(proxy) == before + connections.PLACES - 1
    return ended


@pytest.mark.usefixtures("app")
def test_tasks_of_an_event_loop_that_wait_for_a_silent_database_open_no_connections_of_their_own(
    app, proxy, queue, monkeypatch
):
    monkeypatch.setattr(connections, "SILENT_S", 1.0)

    async def until_they_give_up(tasks: set[asyncio.Task[Any]]) -> None:
        await aeventually(lambda: sum(task.done() for task in tasks) == TASKS - connections.PLACES, within_s=30)

    async def use() -> list[Any]:
        ended = await crowd(proxy, until_they_give_up)
        await app.connections.aclose()
        return ended

    errors = [one for one in asyncio.run(use()) if isinstance(one, BaseException)]
    assert len(errors) == TASKS - connections.PLACES
    assert {type(error) for error in errors} == {outlive.DatabaseUnreachable}
    assert "for 1 s it has answered none of the 8 connections of this event loop" in str(errors[0])
    assert queue.count("jobs") == 1 + connections.PLACES


def test_tasks_of_an_event_loop_go_on_after_a_silence(app, proxy, queue):
    async def a_moment(tasks: set[asyncio.Task[Any]]) -> None:
        await asyncio.wait(tasks, timeout=0.2)

    async def use() -> list[Any]:
        ended = await crowd(proxy, a_moment)
        await app.connections.aclose()
        return ended

    assert {type(one) for one in asyncio.run(use())} == {outlive.Job}
    assert queue.count("jobs") == 1 + TASKS


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("state", ["before", "while it waits", "unconnected"])
def test_a_timeout_is_kept_while_the_database_is_silent(app, proxy, queue, kind, state):
    job = add.enqueue(1)
    if state == "unconnected":
        app.connections.close()

    async def in_a_loop() -> None:
        if state == "before":
            await job.astatus()
            proxy.silence()
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="did not finish within 1 s; the database does not answer"):
            await job.aresult(timeout=1)
        assert time.monotonic() - began < LONG_S
        await app.connections.aclose()

    def in_a_thread() -> None:
        if state == "before":
            proxy.silence()
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="did not finish within 1 s; the database does not answer"):
            job.result(timeout=1)
        assert time.monotonic() - began < LONG_S

    if state == "unconnected":
        proxy.silence()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(in_a_thread) if kind == "sync" else threads.submit(asyncio.run, in_a_loop())
        try:
            if state == "while it waits":
                eventually(lambda: queue.count("awaited") == 1 or waits.done())
                proxy.silence()
            waits.result(30)
        finally:
            proxy.heal()
    assert job.status() is outlive.State.PENDING, "the app works again"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_reads_that_time_out_behind_a_lock_leave_no_session_behind(database_url, queue, kind):
    app = app_at(database_url)
    job = add.enqueue(1)

    async def in_a_loop() -> None:
        with pytest.raises(TimeoutError):
            await job.aresult(timeout=0.5)
        await app.connections.aclose()

    def waiting() -> list[Any]:
        return queue.execute("select pid from pg_locks where not granted").fetchall()

    with queue.transaction(), ThreadPoolExecutor(1) as threads:
        queue.execute("lock table outlive.jobs")
        for _ in range(3):
            if kind == "sync":
                with pytest.raises(TimeoutError):
                    job.result(timeout=0.5)
            else:
                threads.submit(asyncio.run, in_a_loop()).result(30)
        app.connections.close()
        eventually(lambda: waiting() == [], within_s=10, what="the server has ended the sessions")


def test_event_loops_that_are_closed_leave_no_connections_behind(database_url, queue):
    """Tasks that wait for a place keep their loop from being freed."""
    app = app_at(database_url)

    async def many() -> None:
        await asyncio.gather(*(add.aenqueue(n) for n in range(2 * connections.PLACES)))

    for _ in range(3):
        asyncio.run(many())
    asyncio.run(app.connections.aclose())
    others = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    eventually(lambda: queue.execute(others).fetchall() == [], within_s=10)
