"""The database goes away and comes back: each acknowledged job exists exactly once, and no call waits forever."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import outlive
from outlive import db, embedded, migrate
from outlive.client.connections import PATIENCE_S
from tests.client.example import add, app_at
from tests.driving.making import Queue
from tests.waiting import eventually

Query = Callable[..., list[tuple[Any, ...]]]
TERMINATE = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""
PASSWORD = "correct-horse"


class Busy:
    """Threads that enqueue numbered jobs, one after the other, until they are told to stop."""

    def __init__(self, threads: int) -> None:
        self.acknowledged: list[tuple[outlive.Job[int], int]] = []
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._done = [self._pool.submit(self._enqueue, first, threads) for first in range(threads)]

    def _enqueue(self, n: int, step: int) -> None:
        while not self._enough.is_set():
            self.acknowledged.append((add.enqueue(n), n))
            n += step

    def await_more(self, jobs: int) -> None:
        wanted = len(self.acknowledged) + jobs
        eventually(lambda: len(self.acknowledged) >= wanted or self._failed(), within_s=30)

    def _failed(self) -> bool:
        return any(done.done() for done in self._done)

    def stop(self) -> list[tuple[Any, int]]:
        self._enough.set()
        self._pool.shutdown()
        for done in self._done:
            done.result()
        return sorted((job.id, n) for job, n in self.acknowledged)


def test_a_session_that_the_server_ends_because_it_idles_is_not_noticed(app, query):
    job = add.enqueue(1)
    app.connections.within(lambda connection: connection.execute("set idle_session_timeout = '1ms'"))
    others = "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    eventually(lambda: not query(others))
    assert job.status() is outlive.State.PENDING


def test_all_idle_connections_broken_at_once_cost_one_repetition(app, query):
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: app.connections.within(lambda _: together.wait(30)), range(8)))
    assert len(query(TERMINATE)) == 8
    start = time.monotonic()
    add.enqueue(1)
    assert time.monotonic() - start < 1
    assert query("select count(*) from outlive.jobs") == [(1,)]


def test_all_idle_connections_of_an_event_loop_broken_at_once_cost_one_repetition(app, query):
    async def use() -> None:
        together = asyncio.Event()
        arrived = 0

        async def meet(_: db.AsyncConnection) -> None:
            nonlocal arrived
            arrived += 1
            if arrived == 8:
                together.set()
            await together.wait()

        await asyncio.gather(*(app.connections.awithin(meet) for _ in range(8)))
        assert len(query(TERMINATE)) >= 8
        start = time.monotonic()
        await add.aenqueue(1)
        assert time.monotonic() - start < 1
        await app.connections.aclose()

    asyncio.run(use())
    assert query("select count(*) from outlive.jobs") == [(1,)]


def test_everything_acknowledged_is_there_once_while_all_backends_are_terminated_again_and_again(app, query):
    busy = Busy(threads=4)
    for _ in range(15):
        busy.await_more(10)
        query(TERMINATE)
    busy.await_more(10)
    acknowledged = busy.stop()
    assert sorted(query("select id, (args->>'a')::int from outlive.jobs")) == acknowledged
    assert query("select count(*)::int from outlive.waiting") == [(len(acknowledged),)]


def test_a_server_that_is_stopped_for_a_second_loses_nothing_and_clients_see_no_error(server):
    settings = {"fsync": "off"}
    url = embedded.ensure(server, settings=settings)
    with Queue.at(url) as connection:
        migrate.migrate(connection)
    app = app_at(url)
    busy = Busy(threads=2)
    busy.await_more(10)
    assert embedded.release(server, wait_s=10)
    stopped = time.monotonic()
    eventually(lambda: time.monotonic() > stopped + 1)
    before = len(busy.acknowledged)
    assert embedded.ensure(server, settings=settings) == url
    busy.await_more(10)
    acknowledged = busy.stop()
    assert len(acknowledged) > before
    with psycopg.connect(url) as reader:
        assert sorted(reader.execute("select id, (args->>'a')::int from outlive.jobs")) == acknowledged
    app.connections.close()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_where_nothing_listens_the_error_says_so_in_time_and_without_the_password():
    app = app_at(f"postgresql://shop_user:{PASSWORD}@127.0.0.1:{free_port()}/shop")

    async def use() -> list[Any]:
        enqueues = asyncio.to_thread(add.enqueue, 1), add.aenqueue(1)
        return list(await asyncio.gather(*enqueues, return_exceptions=True))

    start = time.monotonic()
    errors = asyncio.run(use())
    assert PATIENCE_S <= time.monotonic() - start < PATIENCE_S + 10
    for error in errors:
        assert isinstance(error, outlive.DatabaseUnreachable)
        assert "the database can't be reached" in str(error)
        assert "127.0.0.1" in str(error)
        assert PASSWORD not in f"{error!r} {error.__cause__!r}"
    app.connections.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_client_that_comes_before_its_server_waits_for_it(server, kind):
    settings = {"fsync": "off"}
    url = embedded.ensure(server, settings=settings)
    with Queue.at(url) as connection:
        migrate.migrate(connection)
    assert embedded.release(server, wait_s=10)
    app = app_at(url)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(add.enqueue, 1) if kind == "sync" else threads.submit(asyncio.run, add.aenqueue(1))
        before = time.monotonic()
        eventually(lambda: time.monotonic() > before + 1)
        assert not asked.done()
        assert embedded.ensure(server, settings=settings) == url
        asked.result(timeout=30)
    app.connections.close()
    embedded.release(server, wait_s=10)


@pytest.mark.parametrize("wrong", [{"dbname": "no_such_database"}, {"user": "no_such_user"}])
def test_a_server_that_refuses_is_asked_once(database_url, wrong):
    app_at(make_conninfo(database_url, **wrong))
    start = time.monotonic()
    with pytest.raises(outlive.DatabaseUnreachable, match="does not exist"):
        add.enqueue(1)
    assert time.monotonic() - start < PATIENCE_S


@pytest.mark.long
def test_a_server_that_never_answers_is_given_up(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        app_at(f"postgresql://shop_user:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/shop")
        start = time.monotonic()
        with pytest.raises(outlive.DatabaseUnreachable, match="timeout"):
            add.enqueue(1)
        assert time.monotonic() - start < 30


@pytest.mark.parametrize("where", ["127.0.0.1:{port}/shop?connect_timeout=2", "127.0.0.1:{port},127.0.0.1:1/shop"])
def test_a_host_that_never_answers_gets_the_time_of_the_address_or_two_seconds_beside_others(where):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            db.connect(f"postgresql://{where.format(port=silent.getsockname()[1])}")
        assert 1.9 < time.monotonic() - start < 8


@pytest.mark.parametrize(
    "url",
    [
        f"shop_user:{PASSWORD}@host/shop",
        f"mysql://shop_user:{PASSWORD}@host/shop",
        f"postgresql://a:b {PASSWORD}@host/shop",
        f"postgresql://a:p@ss{PASSWORD}@127.0.0.1:1/shop",
        f"postgresql://a:{PASSWORD}/x@127.0.0.1:1/shop",
        f"postgresql://a:12/{PASSWORD}@127.0.0.1:1/shop",
        f"postgresql://a:p?x=@{PASSWORD}@127.0.0.1:1/shop",
        f"postgresql://a:{PASSWORD}",
        f"host=127.0.0.1 port=1 password=p {PASSWORD}=1",
    ],
)
def test_a_malformed_address_is_refused_without_quoting_its_password(url):
    app_at(url)
    with pytest.raises(outlive.ConfigError, match="write it like postgresql://") as raised:
        add.enqueue(1)
    assert PASSWORD not in str(raised.value)
    assert raised.value.__suppress_context__
