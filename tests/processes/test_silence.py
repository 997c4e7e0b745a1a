"""When a worker leaves a server that does not answer, and when it stays with one that is only slow."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from outlive.statement import Statement
from outlive.worker import session
from outlive.worker.session import Session, Silence
from tests.proxy import Boundary, Proxy, Side

SLEEP = Statement("sleep", b"select pg_sleep(1)", (), lambda rows: len(rows))

Asked = Callable[[Silence, "asyncio.Task[int]"], Awaitable[None]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SILENT_S", 0.3)
    monkeypatch.setattr(session, "CHECK_S", 0.05)


def ask(url: str, work: Asked) -> None:
    """Do something while a statement is under way in a session of a worker."""

    async def run() -> None:
        session = Session(url)
        await session.open()
        try:
            async with asyncio.timeout(20):
                await work(Silence([session]), asyncio.create_task(session.run(SLEEP)))
        finally:
            await session.close()

    asyncio.run(run())


async def answered(watch: Silence, asked: "asyncio.Task[int]") -> int:
    """What the statement answers while the worker looks for a silent server."""
    while not asked.done():
        await watch.run_once()
    return await asked


def test_a_worker_stays_with_a_server_that_is_slow(database_url):
    async def work(watch: Silence, asked: "asyncio.Task[int]") -> None:
        assert await answered(watch, asked) == 1

    ask(database_url, work)


def test_a_worker_stays_with_a_server_that_is_slow_and_so_full_that_it_refuses_connections(
    empty_database_url, server_url
):
    async def work(watch: Silence, asked: "asyncio.Task[int]") -> None:
        with psycopg.connect(server_url, autocommit=True) as admin:
            name = psycopg.conninfo.conninfo_to_dict(empty_database_url)["dbname"]
            admin.execute(f"alter database {name} allow_connections false".encode())
        assert await answered(watch, asked) == 1

    ask(empty_database_url, work)


def test_a_worker_leaves_a_server_whose_session_of_the_same_number_is_idle(database_url, tmp_path):
    """The server has answered and forgotten the statement, and the answer is lost: so it looks on another server."""

    def lose(at: Boundary) -> None:
        if at.side is Side.AFTER and "pg_sleep" in at.text:
            at.link.silence()

    async def work(watch: Silence, asked: "asyncio.Task[int]") -> None:
        with pytest.raises(psycopg.OperationalError):
            await answered(watch, asked)

    with Proxy(database_url, tmp_path, at_boundary=lose) as proxy:
        ask(proxy.url, work)
